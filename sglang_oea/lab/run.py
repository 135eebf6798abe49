"""`sglang-oea eval`, step by step: what can be refused is refused before anything is measured."""

import sys
import time
from argparse import Namespace

import torch

from .bench import Bench
from .errors import LabError
from .model import load
from .plot import pareto, refuse_without_matplotlib
from .policies import Policy, default_specs
from .report import figures, table
from .results import Results, Setting, hash_of_tokens, hash_of_weights
from .texts import sequences

# sequences of the calibration text: similarity is a mean over all their tokens
CALIBRATION_SEQUENCES = 4


def run(args: Namespace) -> int:
    """Measure what is not measured yet, print the table, draw the plots.

    Raises:
        LabError: bad input.
    """
    start = time.monotonic()

    def say(text: str) -> None:
        print(f"[{time.monotonic() - start:6.1f} s] {text}", file=sys.stderr, flush=True)

    policies = [Policy.parse(spec) for spec in args.policy]
    against = Policy.parse(args.against)
    _refuse_uneven(args.batch, args.sequences)
    _refuse_without_calibration(args, [*policies, against])
    if args.plot is not None:
        refuse_without_matplotlib()

    device = _device(args.device)
    # half precision is slower on most CPUs, and less exact everywhere
    dtype = args.dtype or ("float32" if device == "cpu" else "auto")
    say(f"loading {args.model} on {device}")
    subject, tokenizer = load(args.model, device, dtype)
    say(f"{len(subject.layers)} MoE layers, top-{subject.slots} of {subject.experts} experts")

    shape = {"length": args.length, "seed": args.seed}
    tokens = sequences(args.text, tokenizer, count=args.sequences, **shape)
    calibration = None
    if args.calibration is not None:
        calibration = sequences(
            args.calibration,
            tokenizer,
            count=CALIBRATION_SEQUENCES,
            option="--calibration",
            **shape,
        )
    setting = Setting(
        args.model.resolve().name,
        args.text.name,
        str(subject.model.dtype).removeprefix("torch."),
        args.length,
        hash_of_weights(subject.model),
        hash_of_tokens(tokens),
    )
    bench = Bench(subject, tokens, Results(args.out, setting), calibration, say)
    if not policies:
        specs = default_specs(subject.probed(0), calibrated=calibration is not None)
        policies = [Policy.parse(spec) for spec in specs]

    rows = bench.rows([against, *policies], args.batch)
    compared = figures(rows, args.seed, str(against))
    print(
        f"{setting.label}: {args.sequences} sequences of {args.length} tokens, {setting.dtype}; "
        f"difference to {against}"
    )
    print(table(compared))
    if args.plot is not None:
        for file in pareto(args.plot, compared, setting.label, rows[0].tokens):
            say(f"wrote {file}")
    return 0


def _device(named: str | None) -> str:
    device = named or ("cuda" if torch.cuda.is_available() else "cpu")
    try:
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        raise LabError(
            "the device cannot be used",
            where=f"--device {device}",
            got=str(error).splitlines()[0],
            expected="cpu, or cuda where torch finds a GPU",
            fix="leave --device out: the lab takes what is there",
        ) from None
    return device


def _refuse_uneven(batches: list[int], sequences: int) -> None:
    uneven = [batch for batch in batches if sequences % batch]
    if uneven:
        raise LabError(
            "the sequences do not make whole batches",
            where=f"--batch {uneven[0]}",
            got=f"--sequences {sequences}",
            expected=f"a multiple of {uneven[0]}",
            fix=f"--sequences {max(1, sequences // uneven[0]) * uneven[0]}, or another --batch",
        )


def _refuse_without_calibration(args: Namespace, policies: list[Policy]) -> None:
    needy = [policy for policy in policies if policy.calibrated]
    if needy and args.calibration is None:
        raise LabError(
            f"{needy[0].name} needs a calibration text",
            where=f"--policy {needy[0]}",
            got="no --calibration",
            expected="a text that is not the evaluated one",
            fix="add --calibration FILE",
        )

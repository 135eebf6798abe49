#!/usr/bin/env python3
"""Train the demo's Mixture of Experts on a CPU, from Debian's documentation to a checkpoint.

    python scripts/train_demo_model.py --work DIR --steps 4000 --out MODEL
    python scripts/train_demo_model.py --measure MODEL

DIR keeps the packages, the texts and the run's state and log; the same command goes on from there.
The learning rate rises, stays, and falls over the last part of --steps. So a run that is stopped
before the fall (--minutes, or an interrupt) can end as a good model at a smaller number of steps.
Needs apt-get, dpkg-deb, and the extras `serve` and `plot`; about 1 s a step on two cores.

Contract: the same texts, seed and steps make the same weights on the same machine with as many
threads, resumed or not. MODEL appears when the last step is done, with its figures.
"""

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

EVALUATE_EVERY = 250
SAMPLE_EVERY = 1000
SAY_EVERY = 25
# seconds of work that an interrupt may lose
SAVE_EVERY = 60.0


def say(what: str) -> None:
    """Tell, at once, also when it goes to a file."""
    print(what, flush=True)


def stream_of(texts: Path, tokenizer: Any, seed: int) -> Any:
    """All documents to train on as one run of tokens, in a random order, each with an end."""
    import torch
    from demo_model.texts import read_jsonl

    documents = [row["text"] for row in read_jsonl(texts / "train.jsonl")]
    order = torch.randperm(len(documents), generator=torch.Generator().manual_seed(seed))
    encoded = tokenizer([documents[i] for i in order.tolist()]).input_ids
    return torch.tensor([t for ids in encoded for t in (*ids, tokenizer.eos_token_id)])


def train(args: argparse.Namespace, config: Any = None) -> bool:
    """Begin or go on, and keep state and log on the way; whether the last step is done.

    Args:
        config: of a model other than the demo's, for tests.
    """
    import torch
    from demo_model.architecture import make_config, make_model
    from demo_model.export import PROMPTS
    from demo_model.measure import evaluate, sample, sequences
    from demo_model.texts import read_jsonl, write_jsonl
    from demo_model.training import LENGTH, TOKENS, Training
    from transformers import AutoTokenizer

    started = time.monotonic()
    texts, run = args.work / "texts", args.work / "run"
    state, log = run / "state.pt", run / "log.jsonl"
    run.mkdir(parents=True, exist_ok=True)
    log.touch()
    tokenizer = AutoTokenizer.from_pretrained(texts / "tokenizer")
    stream = stream_of(texts, tokenizer, args.seed)
    held_out = sequences(read_jsonl(texts / "held_out.jsonl"), tokenizer, LENGTH)[:64]
    model = make_model(config or make_config(tokenizer), args.seed)
    training = Training(model, args.seed, args.steps)
    if state.exists():
        training.load(state)
        # steps that were taken after the last save are taken again
        write_jsonl(log, [row for row in read_jsonl(log) if row["step"] <= training.step])
    size = sum(p.numel() for p in model.parameters())
    say(f"{size / 1e6:.2f} M parameters, {len(stream) / 1e6:.2f} M tokens, step {training.step}")
    saved = mark = time.monotonic()
    losses: list[float] = []
    while training.step < args.steps:
        losses.append(training.advance(training.windows(stream)))
        done, now = training.step == args.steps, time.monotonic()
        if training.step % SAY_EVERY == 0 or done:
            speed = len(losses) * TOKENS / (now - mark)
            row: dict[str, Any] = {"step": training.step, "loss": sum(losses) / len(losses)}
            if training.step % EVALUATE_EVERY == 0 or done:
                with torch.autocast("cpu", torch.bfloat16):
                    row |= evaluate(model, held_out, tokenizer)
            append(log, row)
            shown = " ".join(f"{k} {v:.4g}" for k, v in row.items() if isinstance(v, float))
            left = (args.steps - training.step) * TOKENS / speed / 60
            say(f"step {training.step}: {shown}, {speed:.0f} tokens/s, {left:.0f} min left")
            losses, mark = [], time.monotonic()
        if training.step % SAMPLE_EVERY == 0:
            for prompt in PROMPTS:
                say(f"  | {sample(model, tokenizer, prompt, tokens=48)!r}")
        late = args.minutes is not None and now - started > 60 * args.minutes
        if done or late or now - saved > SAVE_EVERY:
            training.save(state)
            saved = now
        if late and not done:
            say(f"stopped after {args.minutes} minutes at step {training.step}")
            return False
    return True


def append(path: Path, row: dict[str, Any]) -> None:
    """Add a row to a file of one JSON object a line."""
    with path.open("a", encoding="utf-8") as lines:
        lines.write(json.dumps(row) + "\n")


def parse(argv: list[str] | None) -> argparse.Namespace:
    """The command line; everything that is wrong with it is one line and exit 2."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0], allow_abbrev=False)
    parser.add_argument("--work", type=Path, metavar="DIR", help="packages, texts, state, log")
    parser.add_argument("--steps", type=int, help="of 4096 tokens; 4000 made the demo's model")
    parser.add_argument("--out", type=Path, metavar="MODEL", help="the checkpoint, at the end")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--minutes", type=float, help="stop then; the same command goes on")
    parser.add_argument("--measure", type=Path, metavar="MODEL", help="only print its figures")
    args = parser.parse_args(argv)
    if args.measure is None and None in (args.work, args.steps, args.out):
        parser.error("expected --work, --steps and --out, or --measure")
    if args.measure is None and args.steps < 1:
        parser.error(f"--steps: expected a whole number from 1 on, got {args.steps}")
    if args.measure and not (args.measure / "held_out.jsonl").is_file():
        parser.error(f"--measure: {args.measure} has no held_out.jsonl; expected a --out of this")
    return args


def main(argv: list[str] | None = None) -> int:
    """Texts, training, checkpoint and figures, as far as they are not there yet."""
    args = parse(argv)
    from demo_model import export, texts

    try:
        if args.measure:
            print(json.dumps(export.measure(args.measure), indent=2))
            return 0
        if not (args.work / "texts").exists():
            texts.make(args.work / "texts", args.work / "packages", say)
        if train(args):
            export.export(args.work / "texts", args.work / "run", args.out)
            figures = json.dumps(export.measure(args.out), indent=2)
            (args.out / "figures.json").write_text(figures + "\n", encoding="utf-8")
            say(figures)
    except (OSError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        say(f"interrupted; the same command goes on from the last save in {args.work}")
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""The folder that ships: weights, tokenizer, texts to evaluate on, loss curve, and its figures."""

import json
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import torch

from demo_model.architecture import gates, make_config, make_model
from demo_model.measure import BATCH, evaluate, sample, sequences
from demo_model.texts import number, read_jsonl, write_jsonl
from demo_model.training import LENGTH, TOKENS

# bytes of text that ship, each whole documents
HELD_OUT_BYTES = 600_000
CALIBRATION_BYTES = 150_000
PROMPTS = ("The function returns", "If the file does not exist,", "A transaction")


def fitting(documents: Iterable[dict[str, str]], room: int) -> Iterator[dict[str, str]]:
    """Documents of all packages, mixed, as many as fit; one that does not fit is passed over."""
    for row in sorted(documents, key=lambda row: number(row["name"])):
        size = len(json.dumps(row)) + 1
        if size <= room:
            room -= size
            yield row


def plot(log: list[dict[str, Any]], path: Path) -> None:
    """Loss in training and on held-out text, over steps."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(7, 4), layout="constrained")
    axes.plot(*_curve(log, "loss"), lw=0.8, label="training text")
    axes.plot(*_curve(log, "held_out"), "o-", ms=3, label="held-out text")
    axes.set(xlabel=f"step of {TOKENS} tokens", ylabel="loss, nats per token")
    axes.grid(alpha=0.3)
    axes.legend()
    figure.savefig(path, dpi=110)
    plt.close(figure)


def _curve(log: list[dict[str, Any]], key: str) -> tuple[list[int], list[float]]:
    rows = [row for row in log if key in row]
    return [row["step"] for row in rows], [row[key] for row in rows]


def export(texts: Path, run: Path, out: Path) -> None:
    """Write everything but the figures."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(texts / "tokenizer")
    model = make_model(make_config(tokenizer), seed=0)
    model.load_state_dict(torch.load(run / "state.pt", weights_only=True)["model"])
    biases = [gate.e_score_correction_bias.clone() for gate in gates(model)]
    model.to(torch.bfloat16)
    # the bias decides between near-equal experts: SGLang keeps it in float32, and so does the file
    for gate, bias in zip(gates(model), biases, strict=True):
        gate.e_score_correction_bias = bias
    out.mkdir(parents=True, exist_ok=True)
    model.save_pretrained(out)
    tokenizer.save_pretrained(out)
    held_out, train = (read_jsonl(texts / f"{name}.jsonl") for name in ("held_out", "train"))
    write_jsonl(out / "held_out.jsonl", fitting(held_out, HELD_OUT_BYTES))
    write_jsonl(out / "calibration.jsonl", fitting(train, CALIBRATION_BYTES))
    shutil.copyfile(texts / "sources.json", out / "sources.json")
    plot(read_jsonl(run / "log.jsonl"), out / "loss.png")


def measure(folder: Path) -> dict[str, Any]:
    """The figures of a checkpoint on the held-out text beside it, computed in float32."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    held_out = sequences(read_jsonl(folder / "held_out.jsonl"), tokenizer, LENGTH)
    held_out = held_out[: len(held_out) // BATCH * BATCH]
    figures = {"parameters": sum(p.numel() for p in model.parameters()), "sequences": len(held_out)}
    figures |= evaluate(model, held_out, tokenizer)
    torch.manual_seed(0)
    figures["samples"] = {
        f"temperature {temperature}": [
            sample(model, tokenizer, p, 60, temperature) for p in PROMPTS
        ]
        for temperature in (0.0, 0.7)
    }
    return figures

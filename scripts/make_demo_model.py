#!/usr/bin/env python3
"""Make a small Mixture-of-Experts checkpoint with random weights, to serve where there is no GPU.

    python scripts/make_demo_model.py --kind glm4-moe --size demo --out DIR

`glm4-moe` routes as GLM-5 does: sigmoid, correction bias, one group, a shared expert, a first dense
layer, renormalised and scaled weights. `qwen3-moe`: softmax, no bias. `demo` is the size to time,
its expert loop dominates a decode step; `tiny` is the size for tests, it loads at once.

Contract: the same arguments make the same weights. DIR appears complete or not at all; a DIR made
with the same arguments is reused (exit 0), any other content of DIR is refused (exit 2). The text
such a model writes means nothing; which experts it activates has the shape of a real one.
"""

import argparse
import dataclasses
import json
import os
import shutil
import string
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

# what decides the weights beside the arguments: raise it when fill() or the configs change
RECIPE = 1
STAMP = "demo_model.json"
# outside the clone, beside the Python environment of environment.sh
CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "sglang-oea"
EOS, PAD = "<|end|>", "<|pad|>"
CHAT = "{% for m in messages %}{{ m['content'] }}\n{% endfor %}"


@dataclasses.dataclass(frozen=True)
class Size:
    """The dimensions that differ between the sizes."""

    moe_layers: int
    experts: int
    hidden: int
    expert_intermediate: int
    heads: int


SIZES = {
    "demo": Size(moe_layers=4, experts=128, hidden=1024, expert_intermediate=512, heads=8),
    "tiny": Size(moe_layers=2, experts=64, hidden=128, expert_intermediate=64, heads=4),
}
TOP_K = 8

# the part of an embedding that all tokens share, and how much popularity adds to a router's logits:
# together they put T at 16 rows of `demo` well above top_k and well below the number of experts
SHARE = 0.2
POPULARITY = 1.5
# louder than the rest, so that attention is sharp and the text depends on context and routing:
# with all gains at one, greedy text soon repeats one letter
GAINS = {"q_proj.weight": 2.0, "k_proj.weight": 2.0, "o_proj.weight": 2.0, "experts.down_proj": 2.0}
QK_NORM = 2.0


def make_tokenizer() -> Any:
    """A `PreTrainedTokenizerFast` of one token a byte: no unknown text, no download."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    bpe = Tokenizer(models.BPE({symbol: i for i, symbol in enumerate(alphabet)}, merges=[]))
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=bpe, eos_token=EOS, pad_token=PAD)
    tokenizer.chat_template = CHAT
    return tokenizer


def make_config(kind: str, size: Size, tokenizer: Any) -> Any:
    """The transformers config of a kind in a size."""
    from transformers import Glm4MoeConfig, Qwen3MoeConfig

    common = {
        "vocab_size": len(tokenizer),
        "hidden_size": size.hidden,
        "moe_intermediate_size": size.expert_intermediate,
        "num_attention_heads": size.heads,
        "num_key_value_heads": 2,
        "head_dim": size.hidden // size.heads // 2,
        "num_experts_per_tok": TOP_K,
        "norm_topk_prob": True,
        "max_position_embeddings": 4096,
        "eos_token_id": tokenizer.eos_token_id,
        "pad_token_id": tokenizer.pad_token_id,
        "tie_word_embeddings": False,
        # half the bytes of float32, and bytes are what an expert costs: less than half the time on
        # a CPU with bfloat16 instructions. and SGLang would serve float32 as float16 unless told
        "dtype": "bfloat16",
    }
    if kind == "qwen3-moe":
        layers = size.moe_layers
        return Qwen3MoeConfig(num_hidden_layers=layers, num_experts=size.experts, **common)
    return Glm4MoeConfig(
        num_hidden_layers=size.moe_layers + 1,
        first_k_dense_replace=1,
        intermediate_size=2 * size.expert_intermediate,
        n_routed_experts=size.experts,
        n_shared_experts=1,
        n_group=1,
        topk_group=1,
        routed_scaling_factor=2.5,
        num_nextn_predict_layers=0,
        **common,
    )


def fill(model: Any, tokenizer: Any, seed: int) -> None:
    """Draw every weight, in the order of the state dict.

    All embeddings share a direction that some experts like more than others, so that a batch has
    popular experts, as a trained model's has: without it T would be that of a uniform draw.
    """
    import torch

    rng = torch.Generator().manual_seed(seed)
    shared = torch.randn(model.config.hidden_size, generator=rng)
    shared /= shared.square().mean().sqrt()
    for name, weight in model.state_dict().items():
        if name.endswith("norm.weight"):
            weight.fill_(QK_NORM if name.endswith(("q_norm.weight", "k_norm.weight")) else 1.0)
            continue
        weight.normal_(generator=rng)
        if name.endswith("e_score_correction_bias"):
            weight.mul_(0.1)
        elif name.endswith("embed_tokens.weight"):
            weight.mul_((1 - SHARE**2) ** 0.5).add_(shared, alpha=SHARE)
        else:
            weight.mul_(weight.shape[-1] ** -0.5)
        if name.endswith("mlp.gate.weight"):
            liked = torch.randn(len(weight), 1, generator=rng)
            weight.add_(liked * shared, alpha=POPULARITY / SHARE / len(shared)).mul_(1.5)
        for part, gain in GAINS.items():
            if name.endswith(part):
                weight.mul_(gain)
    mute(model.lm_head.weight.data, shared, tokenizer)


def mute(head: Any, shared: Any, tokenizer: Any) -> None:
    """Make the head blind to what all tokens share, and let it write letters and digits only.

    Every other token, the end included, has a logit of 0 and is never the best: greedy text can be
    read, and is as long as was asked for.
    """
    import torch

    unit = (shared / shared.norm()).to(head.dtype)
    head.sub_((head @ unit)[:, None] * unit)
    spoken = tokenizer.convert_tokens_to_ids(list(string.ascii_letters + string.digits))
    silent = torch.ones(len(head), dtype=torch.bool)
    silent[spoken] = False
    head[silent] = 0.0


def make(kind: str, size: Size, seed: int, folder: Path, say: Callable[[str], None]) -> None:
    """Write the checkpoint and its tokenizer into an existing folder."""
    import torch
    from transformers import AutoModelForCausalLM

    tokenizer = make_tokenizer()
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(make_config(kind, size, tokenizer))
    say(f"drawing {sum(p.numel() for p in model.parameters()) / 1e6:.0f} M weights")
    model = model.to_empty(device="cpu")
    fill(model, tokenizer, seed)
    say("writing")
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def cached(kind: str, size: str, cache: Path = CACHE) -> Path:
    """The folder of a model in the user's cache, made if it is not there.

    Raises:
        SystemExit: the folder holds something else.
    """
    folder = cache / "models" / f"{kind}-{size}-{RECIPE}"
    status = main([f"--kind={kind}", f"--size={size}", f"--out={folder}"])
    if status:
        raise SystemExit(status)
    return folder


def main(argv: list[str] | None = None) -> int:
    """Parse, reuse or make, and say so."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kind", required=True, choices=("glm4-moe", "qwen3-moe"))
    parser.add_argument("--size", required=True, choices=sorted(SIZES))
    parser.add_argument("--out", required=True, type=Path, metavar="DIR")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args(argv)
    out = args.out.absolute()

    start = time.monotonic()

    def say(what: str) -> None:
        print(f"[{time.monotonic() - start:5.1f} s] {args.out}: {what}", flush=True)

    stamp = {k: getattr(args, k) for k in ("kind", "size", "seed")} | {"recipe": RECIPE}
    text = json.dumps(stamp) + "\n"
    mark = out / STAMP
    if mark.is_file() and mark.read_text() == text:
        say("reused")
        return 0
    if out.exists():
        found = mark.read_text().strip() if mark.is_file() else f"no {STAMP}"
        print(
            f"error: {args.out} exists and is not this model: got {found}, expected {text.strip()}."
            " Fix: name another --out, or remove it.",
            file=sys.stderr,
        )
        return 2

    # a sibling, so that the rename at the end stays within one file system
    work = out.with_name(f".{out.name}.{os.getpid()}")
    work.mkdir(parents=True)
    try:
        make(args.kind, SIZES[args.size], args.seed, work, say)
        (work / STAMP).write_text(text)
        work.rename(out)
    finally:
        shutil.rmtree(work, ignore_errors=True)
    say("done")
    return 0


if __name__ == "__main__":
    sys.exit(main())

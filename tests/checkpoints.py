"""Checkpoints of a few bytes, in the format of real ones: GLM-5's settings, tiny weights."""

import json
import struct
from collections.abc import Iterable
from pathlib import Path

# of zai-org/GLM-5's config.json
GLM5 = {
    "architectures": ["GlmMoeDsaForCausalLM"],
    "num_hidden_layers": 78,
    "n_routed_experts": 256,
    "num_experts_per_tok": 8,
    "n_shared_experts": 1,
    "num_nextn_predict_layers": 1,
    "n_group": 1,
    "topk_group": 1,
    "scoring_func": "sigmoid",
    "topk_method": "noaux_tc",
}
EXPERT = "model.layers.3.mlp.experts.0.gate_proj"
SHARED = "model.layers.3.mlp.shared_experts.gate_proj"
MTP = "model.layers.78.mlp.shared_experts.gate_proj.weight"
# one shard a row, as a quantised copy without its MTP layer
WEIGHTS = (
    ("model.embed_tokens.weight", f"{EXPERT}.weight", f"{EXPERT}.weight_scale"),
    (f"{SHARED}.weight", f"{SHARED}.weight_scale", "lm_head.weight"),
)
TENSOR_BYTES = 8


def safetensors(path: Path, names: Iterable[str]) -> int:
    """Write a file with one tensor of four BF16 numbers a name; the bytes of tensors in it."""
    header, end = {"__metadata__": {"format": "pt"}}, 0
    for name in names:
        offsets = [end, end + TENSOR_BYTES]
        header[name] = {"dtype": "BF16", "shape": [4], "data_offsets": offsets}
        end += TENSOR_BYTES
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + bytes(end))
    return end


def make(
    folder: Path,
    *,
    settings: dict | None = None,
    excluded: Iterable[str] = ("lm_head", "model.layers.*.self_attn*"),
    weights: Iterable[Iterable[str]] = WEIGHTS,
) -> Path:
    """A checkpoint as ModelOpt exports it: config, quantisation, index and shards."""
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(GLM5 | (settings or {})))
    quantisation = {"quant_algo": "NVFP4", "group_size": 16, "exclude_modules": list(excluded)}
    modelopt = {"producer": {"name": "modelopt"}, "quantization": quantisation}
    (folder / "hf_quant_config.json").write_text(json.dumps(modelopt))
    shards = list(weights)
    index, total = {}, 0
    for number, names in enumerate(shards, 1):
        file = f"model-{number:05}-of-{len(shards):05}.safetensors"
        total += safetensors(folder / file, names)
        index |= dict.fromkeys(names, file)
    described = {"metadata": {"total_size": total}, "weight_map": index}
    (folder / "model.safetensors.index.json").write_text(json.dumps(described))
    return folder

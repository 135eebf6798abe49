"""Launches of a stand-in for SGLang in processes of their own, and what these saw."""

import json
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

import oracle

ROOT = Path(__file__).resolve().parents[2]
STAND_IN = Path(__file__).with_name("stand_in")
POST_PROCESS = """\
    topk_ids, topk_weights, recorder_topk_ids = _post_process_topk_ids(
        topk_ids=topk_ids,
        topk_weights=topk_weights,
        topk_config=topk_config,
        router_logits=router_logits,
        layer_id=layer_id,
        num_token_non_padded=num_token_non_padded,
    )
    recorded.append(recorder_topk_ids)
"""
POST_PROCESS_FUNCTION = '''

def _post_process_topk_ids(
    topk_ids, topk_weights, topk_config, router_logits, layer_id, num_token_non_padded=None
):
    """What follows the choice, in a function of its own since 0.5.10."""
    return _mapped_and_masked(topk_ids, num_token_non_padded, None), topk_weights, topk_ids
'''


@dataclass
class Launch:
    """A finished `python -m sglang_oea.launch_server`; `notes` is what each process wrote down."""

    status: int
    output: str
    notes: dict[str, dict] = field(default_factory=dict)


class StandIn:
    """A folder that holds a stand-in, and what its release states of itself."""

    def __init__(self, folder: Path, release: str = "0.5.9"):
        self.folder = folder
        shutil.copytree(STAND_IN, folder, ignore=shutil.ignore_patterns("__pycache__"))
        self.install("sglang", release)
        self.topk = folder / "sglang/srt/layers/moe/topk.py"

    def install(self, name: str, version: str, entry_points: str = "") -> None:
        """Metadata as pip leaves it."""
        metadata = self.folder / f"{name}-{version}.dist-info"
        metadata.mkdir()
        text = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
        (metadata / "METADATA").write_text(text)
        (metadata / "entry_points.txt").write_text(entry_points)

    def with_post_process(self) -> "StandIn":
        """As 0.5.10: one function between the top-k and what consumes it."""
        text = self.topk.read_text()
        recorded = "    recorded.append(topk_ids)\n"
        assert recorded in text
        self.topk.write_text(text.replace(recorded, POST_PROCESS) + POST_PROCESS_FUNCTION)
        return self

    def with_plugin_system(self) -> "StandIn":
        """As 0.5.12 and later: SGLang would load plugins itself."""
        (self.folder / "sglang/srt/plugins").mkdir()
        (self.folder / "sglang/srt/plugins/__init__.py").touch()
        return self

    def launch(self, *arguments: str, bare: bool = False, **settings: str) -> Launch:
        """Run the launcher to its end.

        Args:
            arguments: for the stand-in's command line.
            bare: without the packages of this environment.
            settings: `SGLANG_OEA_*` variables.
        """
        notes = self.folder / f"notes-{len(list(self.folder.iterdir()))}"
        notes.mkdir()
        isolated = ["-S"] if bare else []
        command = [sys.executable, *isolated, "-m", "sglang_oea.launch_server", f"--notes={notes}"]
        done = subprocess.run(
            [*command, *arguments],
            cwd=self.folder,
            env=environment(self.folder, **settings),
            capture_output=True,
            text=True,
            timeout=120,
        )
        found = {file.stem: json.loads(file.read_text()) for file in notes.glob("*.json")}
        return Launch(done.returncode, done.stdout + done.stderr, found)


def environment(*path: Path, **settings: str) -> dict[str, str]:
    """Variables for a process with these folders, and this repository, on its path."""
    inherited = {name: value for name, value in os.environ.items() if "SGLANG" not in name}
    own = {f"SGLANG_OEA_{name}": value for name, value in settings.items()}
    folders = os.pathsep.join(map(str, (*path, ROOT)))
    return inherited | own | {"PYTHONPATH": folders, "PYTHONDONTWRITEBYTECODE": "1"}


@dataclass
class Expected:
    """What the oracle makes of a step that the stand-in's two layers did."""

    ids: list
    weights: list
    stock: list
    counters: dict[str, int]

    @classmethod
    def of(cls, step: list[dict], k0: int, valid: list[bool]) -> "Expected":
        """From the logits that the layers saw: the routers' choice, and the rerouted one."""
        made = cls([], [], [], dict.fromkeys(COUNTERS, 0))
        for layer in step:
            made._add(layer["router_logits"], len(layer["topk_ids"][0]), k0, valid)
        return made

    def _add(self, logits, slots, k0, valid):
        gate = [oracle.gate_scores(row, "softmax") for row in logits]
        ids = [sorted(range(len(row)), key=lambda e: -row[e])[:slots] for row in gate]
        weights = [
            [row[e] / sum(row[e] for e in chosen) for e in chosen]
            for row, chosen in zip(gate, ids, strict=True)
        ]
        rules = dict(renormalize=True, valid=valid, max_rank=None)
        new_weights, new_ids = oracle.reroute(gate, gate, ids, weights, [k0] * len(ids), **rules)
        new = [len(set(after) - set(before)) for before, after in zip(ids, new_ids, strict=True)]
        self.ids.append(new_ids)
        self.weights.append(new_weights)
        self.stock.append(ids)
        self.counters["calls"] += 1
        self.counters["rows"] += sum(valid)
        self.counters["experts_before"] += len(oracle.active(ids, valid))
        self.counters["experts_after"] += len(oracle.active(new_ids, valid))
        self.counters["slots_rerouted"] += sum(
            n for n, real in zip(new, valid, strict=True) if real
        )


COUNTERS = ("calls", "rows", "experts_before", "experts_after", "slots_rerouted")

"""`SGLANG_OEA_TRACE`: the first decode forwards of a server, written down as they were routed.

One safetensors file a forward, and after it `manifest.json` anew, by rename: a reader finds whole
forwards only, also while the server runs or after it was killed. `sglang_oea/lab/trace.py` reads
them. Eager forwards only: a captured graph is replayed without the host.
"""

import dataclasses
import json
import logging
import os
import tempfile
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save

from sglang_oea.core.config import Refusal
from sglang_oea.core.session import Session

logger = logging.getLogger("sglang_oea")
# raised with every change that a reader has to know of
FORMAT = 1
MANIFEST = "manifest.json"


def attach(session: Session) -> None:
    """Let an admitted session record, or refuse where its folder cannot be written to.

    Raises:
        Refusal: the folder is in use (`SGLANG_OEA_STRICT=0`: logged, and stock is served).
    """
    try:
        session.recorder = Recorder(session)
    except Refusal as refusal:
        session.refuse(refusal)


class Recorder:
    """Writes each rerouted call of the first `SGLANG_OEA_TRACE_STEPS` forwards, then detaches.

    Args:
        session: the one that it records, and that it leaves when all is written.

    Raises:
        Refusal: the folder is neither new nor empty, or cannot be written to.
    """

    def __init__(self, session: Session):
        self.session = session
        self.folder = _claim(Path(session.settings.trace))
        # of the forward that runs now: its calls in order, and their tensors by number and name
        self.calls: list[dict[str, int]] = []
        self.tensors: dict[str, torch.Tensor] = {}
        # of the forwards that are written
        self.steps: list[dict[str, Any]] = []
        logger.info(
            "sglang_oea: the first %d rerouted forwards will be recorded in %s",
            session.settings.trace_steps,
            self.folder,
        )

    def refuse_capture(self) -> None:
        """Refuse before a call is rerouted that a graph is being captured from.

        Raises:
            Refusal: this is such a call. `SGLANG_OEA_STRICT=0`: logged, and nothing is recorded;
                this rank alone knows, so it must go on routing as the others do.
        """
        capturing = torch.cuda.is_available() and torch.cuda.is_current_stream_capturing()
        # graphs of prefill are no concern: it is not rerouted
        if capturing and self.session.is_open:
            refusal = Refusal(
                "router logits cannot be recorded from a captured graph",
                where=f"SGLANG_OEA_TRACE={self.session.settings.trace}",
                got="a decode forward that is being captured",
                expected="eager decode",
                fix="add --disable-cuda-graph, or unset SGLANG_OEA_TRACE",
            )
            self.session.recorder = None
            if self.session.settings.strict:
                raise refusal
            logger.error("%s\nsglang_oea: SGLANG_OEA_STRICT=0, so nothing is recorded", refusal)

    def record(
        self,
        stock_weights: torch.Tensor,
        stock_ids: torch.Tensor,
        router_logits: torch.Tensor,
        topk_config: Any,
        layer_id: int | None,
        num_token_non_padded: torch.Tensor | None,
        *,
        served_weights: torch.Tensor,
        served_ids: torch.Tensor,
    ) -> None:
        """Keep what `Session.reroute_topk` saw, and what it gave. Synchronises."""
        if served_ids is stock_ids:
            # handed back as it came: this layer is left alone
            return
        rerouter, rows = self.session.rerouter, stock_ids.shape[0]
        valid = rerouter.valid_rows(layer_id, rows, num_token_non_padded)
        tensors = {
            "logits": router_logits,
            "bias": topk_config.correction_bias,
            "valid": valid,
            "k0": rerouter.k0_table[rerouter.index[layer_id], valid.sum()],
            "stock_ids": stock_ids,
            "stock_weights": stock_weights,
            "ids": served_ids,
            "weights": served_weights,
        }
        for name, tensor in tensors.items():
            if tensor is not None:
                # a copy on the CPU too, since the host goes on to write into what it got
                copied = tensor.detach().to("cpu", copy=True).contiguous()
                self.tensors[f"{len(self.calls)}.{name}"] = copied
        self.calls.append({"layer": layer_id, "rows": rows})

    def end_forward(self) -> None:
        """Write the forward that has ended; after the last one, or a failure, leave the session."""
        if not self.calls:
            return
        try:
            self._write()
        except OSError as error:
            # the manifest still describes what was written before
            logger.error("sglang_oea: no longer recording: %s", error)
            self.session.recorder = None
            return
        self.calls, self.tensors = [], {}
        if len(self.steps) == self.session.settings.trace_steps:
            logger.info("sglang_oea: %d forwards are recorded", len(self.steps))
            self.session.recorder = None

    def _write(self) -> None:
        name = f"step-{len(self.steps):05d}.safetensors"
        (self.folder / name).write_bytes(save(self.tensors))
        self.steps.append({"file": name, "calls": self.calls})
        unfinished = self.folder / f"{MANIFEST}.part"
        unfinished.write_text(json.dumps(self._manifest()), encoding="utf-8")
        os.replace(unfinished, self.folder / MANIFEST)

    def _manifest(self) -> dict[str, Any]:
        settings, rerouter = self.session.settings, self.session.rerouter
        return {
            "format": FORMAT,
            "version": rerouter.version,
            "impl": rerouter.impl,
            "k0": settings.k0.shown,
            "max_rank": settings.max_rank,
            "modes": settings.modes,
            "routers": {
                layer_id: dataclasses.asdict(layer.router)
                for layer_id, layer in rerouter.layers.items()
                if layer.why_not is None
            },
            "steps_wanted": settings.trace_steps,
            "complete": len(self.steps) == settings.trace_steps,
            "steps": self.steps,
        }


def _claim(folder: Path) -> Path:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        found = next(folder.iterdir(), None)
        # one that cannot be written to would be noticed only after the model has loaded
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise _not_usable(folder, str(error)) from None
    if found is not None:
        raise _not_usable(folder, f"it holds {found.name}")
    return folder


def _not_usable(folder: Path, got: str) -> Refusal:
    return Refusal(
        "the folder for router logits cannot be used",
        where=f"SGLANG_OEA_TRACE={folder}",
        got=got,
        expected="a folder that is new or empty, in a place that can be written to",
        fix="name another folder, or empty this one, or unset SGLANG_OEA_TRACE",
    )

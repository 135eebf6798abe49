"""Ranks of a tensor-parallel group must reroute alike, or they sum parts of different experts."""

from datetime import timedelta

import torch.distributed as dist

from .config import Refusal, refusal

# a rank that never answers has OEA off; the others were already synchronised by the model load
TIMEOUT = timedelta(seconds=30)


def disagreement(fingerprint: str, group: dist.ProcessGroup) -> Refusal | None:
    """Compare a fingerprint once over a CPU process group.

    Args:
        fingerprint: `Config.fingerprint()`, with versions and implementation mixed in.
        group: the tensor-parallel group's CPU (gloo) group.

    Returns:
        A refusal, the same on every rank, where the ranks differ or one does not take part.
    """
    if dist.get_world_size(group) == 1:
        return None
    try:
        dist.monitored_barrier(group, timeout=TIMEOUT, wait_all_ranks=True)
    except RuntimeError as error:
        return _refusal(f"a rank that does not answer ({str(error).splitlines()[0]})")
    found: list[str] = [""] * dist.get_world_size(group)
    dist.all_gather_object(found, fingerprint, group)
    if len(set(found)) == 1:
        return None
    return _refusal(", ".join(f"rank {rank}: {text[:12]}" for rank, text in enumerate(found)))


def _refusal(got: str) -> Refusal:
    return refusal(
        "the ranks of the tensor-parallel group do not have the same settings",
        where="the comparison at model load",
        got=got,
        expected="one hash of SGLANG_OEA_* settings, package version and implementation",
        fix="set the same SGLANG_OEA_* variables and install the same version on every node",
    )

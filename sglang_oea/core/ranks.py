"""Ranks of a tensor-parallel group must reroute alike, or they sum parts of different experts."""

from datetime import timedelta

import torch.distributed as dist

from .config import Refusal

# a rank that never answers has OEA off. the model load ends with a barrier, so the others are not
# far apart; where SGLang loads weights in the background there is none, hence the patience
TIMEOUT = timedelta(seconds=50)


def disagreement(fingerprint: str, group: dist.ProcessGroup) -> Refusal | None:
    """Compare a fingerprint once over a CPU process group.

    Args:
        fingerprint: `Config.fingerprint()`, with versions and implementation mixed in.
        group: the tensor-parallel group's CPU (gloo) group.

    Returns:
        A refusal, the same on every rank, where the ranks differ or one does not take part.
    """
    ranks = range(dist.get_world_size(group))
    if len(ranks) == 1:
        return None
    # the store and not a collective: a rank that does not take part must not hang the others
    store = dist.distributed_c10d._get_process_group_store(group)
    keys = [f"sglang_oea/{rank}" for rank in ranks]
    store.set(keys[dist.get_rank(group)], fingerprint)
    try:
        store.wait(keys, TIMEOUT)
    except RuntimeError:
        silent = [str(rank) for rank in ranks if not store.check([keys[rank]])]
        return _refusal(f"no answer from rank {', '.join(silent)} within {TIMEOUT.seconds} s")
    found = [store.get(key).decode() for key in keys]
    if len(set(found)) == 1:
        return None
    return _refusal(", ".join(f"rank {rank}: {found[rank][:12]}" for rank in ranks))


def _refusal(got: str) -> Refusal:
    return Refusal(
        "the ranks of the tensor-parallel group do not have the same settings",
        where="the comparison at model load",
        got=got,
        expected="one hash of SGLANG_OEA_* settings, package version and implementation",
        fix="set the same SGLANG_OEA_* variables and install the same version on every node",
    )

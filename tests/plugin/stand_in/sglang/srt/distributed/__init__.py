"""The tensor-parallel group."""

import os
from dataclasses import dataclass

import torch.distributed as dist


@dataclass
class GroupCoordinator:
    """A group by its process group for the CPU."""

    cpu_group: dist.ProcessGroup


def init_distributed_environment(store):
    """A group of one rank, which meets at the file `store`."""
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=0, world_size=1)


def get_tp_group():
    """The group of this process."""
    return GroupCoordinator(dist.group.WORLD)

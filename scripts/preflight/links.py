"""How the GPUs reach each other: IOMMU, peer-to-peer, NCCL's level, NUMA nodes."""

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path

from preflight import probe
from preflight.report import Line

# what a kernel is told where the IOMMU does not translate the GPUs' own addresses
PASSED_THROUGH = {
    "iommu=pt",
    "iommu.passthrough=1",
    "iommu=off",
    "amd_iommu=off",
    "intel_iommu=off",
}
# nvidia-smi's words for the path between two GPUs, and NCCL's levels, nearest first
PATHS = ("PIX", "PXB", "PHB", "NODE", "SYS")
NCCL_ORDER = ("LOC", "NVL", "PIX", "PXB", "PHB", "SYS")


def iommu(root: Path) -> Iterator[Line]:
    """Whether an active IOMMU was told to let the GPUs' traffic pass."""
    told = PASSED_THROUGH & set(probe.read(root / "proc/cmdline").split())
    if told:
        yield Line("ok", "IOMMU", " ".join(sorted(told)))
    elif (units := root / "sys/class/iommu").is_dir() and not any(units.iterdir()):
        yield Line("ok", "IOMMU", "none is active")
    else:
        fix = (
            "peer-to-peer may hang at the first all-reduce (NCCL 1999): add iommu=pt (on AMD also "
            "amd_iommu=pt) to the kernel's command line; in a virtual machine, ask its host"
        )
        yield Line("warn", "IOMMU", "iommu=pt is not on the kernel's command line", fix)


def peer_to_peer(environ: Mapping[str, str]) -> Iterator[Line]:
    """Whether every pair of GPUs can read the other's memory."""
    pairs = matrix(probe.run("nvidia-smi", "topo", "-p2p", "r"))
    refused = Counter(word for word in pairs.values() if word != "OK")
    if refused:
        said = ", ".join(f"{count} say {word}" for word, count in sorted(refused.items()))
        fix = (
            "NCCL goes through host memory, slower: enable peer-to-peer in the driver, switch PCIe "
            "ACS off in the firmware; if NCCL hangs, NCCL_P2P_DISABLE=1 is the last resort"
        )
        yield Line("warn", "peer-to-peer", f"of {len(pairs)} pairs {said}", fix)
    else:
        yield Line("ok", "peer-to-peer", f"all {len(pairs)} pairs")
    if environ.get("NCCL_P2P_DISABLE", "0") != "0":
        fix = "unset it, unless NCCL hangs without it"
        yield Line("warn", "NCCL_P2P_DISABLE", "peer-to-peer is switched off", fix)


def nccl_level(environ: Mapping[str, str]) -> Iterator[Line]:
    """The NCCL_P2P_LEVEL that reaches the farthest pair, against the one that is set."""
    words = set(matrix(probe.run("nvidia-smi", "topo", "-m")).values())
    pcie = [word for word in PATHS if word in words]
    if not pcie:
        raise probe.Unanswered(
            f"nvidia-smi topo -m names no PCIe path ({', '.join(sorted(words))})"
        )
    # PHB reaches every pair of a NUMA node, SYS crosses to another
    needed = "SYS" if pcie[-1] == "SYS" else "PHB"
    found = f"{pcie[-1]} is the farthest pair: NCCL_P2P_LEVEL={needed}"
    given = environ.get("NCCL_P2P_LEVEL", needed)
    order = {level: near for near, level in enumerate(NCCL_ORDER)}
    if order.get(given, -1) < order[needed]:
        fix = f"export NCCL_P2P_LEVEL={needed}, or unset it"
        yield Line("warn", "NCCL level", f"{found}, but it is {given}", fix)
    else:
        yield Line("ok", "NCCL level", found)


def numa(root: Path) -> Iterator[Line]:
    """On which NUMA node each GPU hangs."""
    nodes = [p.name for p in (root / "sys/devices/system/node").glob("node[0-9]*")]
    if not nodes:
        raise probe.Unanswered(f"{root / 'sys/devices/system/node'} lists no node")
    layout = Counter(affinity(probe.run("nvidia-smi", "topo", "-m")).values())
    there = ", ".join(f"{count} GPUs on node {node}" for node, count in sorted(layout.items()))
    found = f"{len(nodes)} node{'s' * (len(nodes) > 1)}; {there}"
    if any(not node.isdigit() for node in layout):
        fix = "the firmware does not say where the GPUs are; place processes by hand with numactl"
        yield Line("warn", "NUMA", found, fix if len(nodes) > 1 else "")
    else:
        yield Line("ok", "NUMA", found)


def matrix(answer: str) -> dict[tuple[int, int], str]:
    """The word for each pair of GPUs, in a matrix as `nvidia-smi topo` prints it.

    Raises:
        Unanswered: no such matrix, as with fewer than two GPUs.
    """
    pairs = {}
    header, rows = _table(answer)
    columns = [(at, int(name[3:])) for at, name in enumerate(header) if re.match(r"GPU\d+$", name)]
    for row, words in rows.items():
        pairs |= {(row, gpu): words[at] for at, gpu in columns if gpu != row and at < len(words)}
    if not pairs:
        raise probe.Unanswered("nvidia-smi topo shows no pair of GPUs")
    return pairs


def affinity(answer: str) -> dict[int, str]:
    """The NUMA node of each GPU, in nvidia-smi's word, from `topo -m`."""
    header, rows = _table(answer)
    at = header.index("NUMA Affinity") if "NUMA Affinity" in header else len(header)
    return {gpu: words[at] if at < len(words) else "unknown" for gpu, words in rows.items()}


def _table(answer: str) -> tuple[list[str], dict[int, list[str]]]:
    """The header's names and each GPU's words, column for column."""
    # the header is underlined, on a terminal or not
    plain = re.sub(r"\x1b\[[0-9;]*m", "", answer)
    lines = [[word.strip() for word in line.split("\t")] for line in plain.splitlines()]
    header = next((line for line in lines if "GPU0" in line[1:]), [])
    rows = {int(line[0][3:]): line for line in lines if re.match(r"GPU\d+$", line[0])}
    return header, rows

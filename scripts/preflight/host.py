"""What the operating system grants: limits, the port, and variables that are known to harm."""

import socket
from collections.abc import Iterator, Mapping
from pathlib import Path

from preflight import probe
from preflight.report import Line

# SGLang raises its own limit to this where the hard limit lets it
OPEN_FILES = 65535
KERNEL_NAMES = {"nofile": "Max open files", "memlock": "Max locked memory"}
# the words that SGLang reads as true
TRUE = ("true", "1", "yes", "y")
SWITCH = "SGLANG_ENABLE_JIT_DEEPGEMM"
# the release that takes compute capability 12.0 for 10.0
MISTAKEN = (0, 5, 9)
# other names for the switch, from guides
UNREAD = ("SGLANG_ENABLE_DEEP_GEMM", "SGLANG_DISABLE_DEEP_GEMM", "SGL_ENABLE_JIT_DEEPGEMM")


def environment(environ: Mapping[str, str], release: tuple[int, ...]) -> Iterator[Line]:
    """Variables of this shell, which the server inherits.

    Args:
        environ: the variables.
        release: the numbers of SGLang's version, none where it is not installed.
    """
    found = list(_deepgemm(environ, release))
    yield from found or [Line("ok", "environment", "no variable that is known to harm")]


def _deepgemm(environ: Mapping[str, str], release: tuple[int, ...]) -> Iterator[Line]:
    if release == MISTAKEN and environ.get(SWITCH, "").lower() in TRUE:
        found = f"{SWITCH}={environ[SWITCH]}: DeepGEMM yields NaN on these GPUs (SGLang 19948)"
        fix = "unset it: the launcher sets it to 0 for this release"
        yield Line("warn", "environment", found, fix)
    for name in UNREAD:
        if name in environ:
            found = f"{name}={environ[name]}: SGLang does not read it; DeepGEMM stays as it is"
            fix = f"the name is {SWITCH}=0, which the launcher sets where it applies"
            yield Line("warn", "environment", found, fix)


def limits(root: Path) -> Iterator[Line]:
    """Open files and locked memory of this shell, which the server inherits."""
    table = probe.read(root / "proc/self/limits")
    open_files, locked = (_hard_limit(table, KERNEL_NAMES[name]) for name in KERNEL_NAMES)
    if open_files is not None and open_files < OPEN_FILES:
        fix = f"SGLang wants {OPEN_FILES}: ulimit -Hn as root, LimitNOFILE= of the service, or "
        yield Line("warn", "nofile", f"at most {open_files}", fix + "docker --ulimit nofile=")
    else:
        yield Line("ok", "nofile", f"up to {'any number' if open_files is None else open_files}")
    if locked is not None:
        fix = "pinned buffers may be refused: ulimit -l unlimited, LimitMEMLOCK=infinity of the "
        fix += "service, or docker --ulimit memlock=-1"
        yield Line("warn", "memlock", f"at most {locked} bytes", fix)
    else:
        yield Line("ok", "memlock", "unlimited")


def _hard_limit(table: str, name: str) -> int | None:
    """A row of /proc/self/limits; None for unlimited."""
    for line in table.splitlines():
        if line.startswith(name):
            hard = line.removeprefix(name).split()[1]
            return None if hard == "unlimited" else int(hard)
    raise probe.Unanswered(f"/proc/self/limits has no {name!r}")


def port(address: str, number: int) -> Iterator[Line]:
    """Whether a server could listen there."""
    try:
        family = socket.getaddrinfo(address, number, type=socket.SOCK_STREAM)[0][0]
        # reuses the address as the server does: a connection that just ended is no obstacle
        socket.create_server((address, number), family=family).close()
    except OSError as error:
        fix = f"end what holds it (ss -ltnp 'sport = :{number}'), or choose another --port"
        found = f"{number} of {address} cannot be used: {error.strerror or error}"
        yield Line("FAIL", "port", found, fix)
    else:
        yield Line("ok", "port", f"{number} of {address} is free")

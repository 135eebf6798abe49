"""Stock SGLang servers over HTTP, shared by all tests of this folder.

For each kind of model one server with OEA (k0 changed live) and one without. They start when first
asked for and stop with the session. Greedy requests go as one list, so that a batch is composed
alike every time.
"""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from make_demo_model import cached
from serving import Server

KINDS = ("glm4-moe", "qwen3-moe")
FLAGS = (
    "--mem-fraction-static=0.3",
    "--max-total-tokens=16384",
    "--disable-radix-cache",
    "--expert-distribution-recorder-mode=per_pass",
)


@pytest.fixture(scope="session")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Logs and recordings of this session."""
    return tmp_path_factory.mktemp("servers")


@pytest.fixture(scope="session")
def serve(workspace: Path) -> Iterator[Callable[..., Server]]:
    """`serve(kind, **settings)`: the server with these settings, started once."""
    running: dict[tuple, Server] = {}

    def server(kind: str, **settings: str) -> Server:
        key = (kind, *sorted(settings.items()))
        if key not in running:
            name = f"{kind}-{'oea' if settings else 'stock'}"
            recordings = {"SGLANG_EXPERT_DISTRIBUTION_RECORDER_DIR": str(workspace / name)}
            running[key] = Server(
                cached(kind, "tiny"),
                log=workspace / f"{name}.log",
                settings=settings | recordings,
                flags=FLAGS,
            )
            running[key].start()
            running[key].wait_ready()
        return running[key]

    yield server
    for started in running.values():
        started.stop()


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    """Both gates: sigmoid with correction bias and a shared expert, softmax."""
    return request.param


@pytest.fixture
def oea(serve: Callable[..., Server], kind: str) -> Server:
    """The server with the plugin at work."""
    return serve(kind, SGLANG_OEA_K0="4")


@pytest.fixture
def stock(serve: Callable[..., Server], kind: str) -> Server:
    """The same server where nobody asked for OEA."""
    return serve(kind)

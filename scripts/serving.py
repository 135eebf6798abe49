"""Start a stock SGLang server, wait until it answers, leave nothing behind.

Shared by the demo, the tests and the benchmarks.
"""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

READY_SECONDS = 180
NOT_INHERITED = ("SGLANG_OEA_", "TRITON_INTERPRET")
# what serves without a GPU: SGLang's own server on torch's operators
# passive: threads that spin between operators starve everything else on few cores
CPU_ENVIRONMENT = {"SGLANG_PLATFORM": "cpu_torch", "OMP_WAIT_POLICY": "PASSIVE"}
CPU_FLAGS = (
    "--device=cpu",
    "--attention-backend=torch_native",
    "--sampling-backend=pytorch",
    "--disable-cuda-graph",
    # an idle scheduler would spin on one of few cores
    "--sleep-on-idle",
)


class ServerError(RuntimeError):
    """The server did not start, or stopped; the message ends with what its log says of it."""


class Server:
    """A server process on 127.0.0.1, as a context manager.

    Args:
        model: folder of the checkpoint.
        settings: environment variables on top of this process's, `SGLANG_OEA_*` first of all. Those
            of this process that start with `SGLANG_OEA_` are not passed on.
        flags: further arguments of `sglang.launch_server`.
        log: file for its output.
        cpu: serve on the CPU platform.
        port: default: a free one.
    """

    def __init__(
        self,
        model: Path,
        *,
        log: Path,
        settings: dict[str, str] | None = None,
        flags: Sequence[str] = (),
        cpu: bool = True,
        port: int | None = None,
    ):
        self.port = port or free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.log = log
        # a server of its own: no settings and no interpreted kernels of whoever starts it
        inherited = {k: v for k, v in os.environ.items() if not k.startswith(NOT_INHERITED)}
        self.environment = inherited | (CPU_ENVIRONMENT if cpu else {}) | (settings or {})
        self.command = [
            *(sys.executable, "-m", "sglang.launch_server", f"--model-path={model}"),
            *("--host=127.0.0.1", f"--port={self.port}"),
            *(CPU_FLAGS if cpu else ()),
            *flags,
        ]
        self.process: subprocess.Popen | None = None

    def start(self) -> None:
        """Start the process, in a group of its own so that its children can be stopped with it."""
        self.log.parent.mkdir(parents=True, exist_ok=True)
        with open(self.log, "wb") as output:
            self.process = subprocess.Popen(
                self.command,
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def wait_ready(self, tick: Callable[[], None] = lambda: None) -> None:
        """Return once it answers requests; `tick` is called about once a second meanwhile.

        Raises:
            ServerError: it exited, or did not answer in time.
        """
        deadline = time.monotonic() + READY_SECONDS
        while time.monotonic() < deadline:
            if self.process.poll() is not None:
                raise ServerError(
                    f"the server exited with {self.process.returncode}:\n{self.tail()}"
                )
            try:
                self.get("/health", timeout=5)
                return
            except OSError:
                tick()
                time.sleep(1)
        raise ServerError(f"the server did not answer within {READY_SECONDS} s:\n{self.tail()}")

    def stop(self) -> None:
        """Stop the server by its own process id, then whatever of its group is left."""
        if self.process is None:
            return
        self.process.terminate()
        # its children end with it; told directly, SGLang would take their end for a crash
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(timeout=15)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def __enter__(self) -> "Server":
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def get(self, path: str, timeout: float = 60) -> Any:
        """GET JSON, or text where the server does not say that it is JSON."""
        return _answer(urllib.request.Request(self.url + path), timeout)

    def post(self, path: str, body: dict, timeout: float = 300) -> Any:
        """POST JSON; the answer as from `get`."""
        request = urllib.request.Request(
            self.url + path, json.dumps(body).encode(), {"Content-Type": "application/json"}
        )
        return _answer(request, timeout)

    def oea(self) -> dict:
        """The `oea` field of `/server_info`; empty on a server without the plugin at work."""
        return self.get("/server_info")["internal_states"][0].get("oea", {})

    def set_k0(self, k0: int) -> None:
        """Change k0 while it serves, and check that it did."""
        answer = self.post("/set_internal_state", {"server_args": {"oea_k0": k0}})
        if answer != [True] or self.oea().get("k0") != k0:
            raise ServerError(f"the server did not take k0={k0}: it answered {answer}")

    def tail(self, lines: int = 25) -> str:
        """The end of its log."""
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:])


def free_port() -> int:
    """A port of 127.0.0.1 that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def _answer(request: urllib.request.Request, timeout: float) -> Any:
    with urllib.request.urlopen(request, timeout=timeout) as response:
        body = response.read()
    return json.loads(body) if "json" in response.headers.get_content_type() else body.decode()

"""A requested OEA that cannot run: the real process stops soon, with one message."""

import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from make_demo_model import cached, make_tokenizer
from serving import Server, ServerError

pytestmark = pytest.mark.server
SECONDS = 60
FLAGS = ("--mem-fraction-static=0.3", "--max-total-tokens=4096")
MALFORMED = {
    "SGLANG_OEA_K0": ["four", "-1", "3.5", "1:8,1:4", "8:4,2:8", "0:4", "4,"],
    "SGLANG_OEA_KO": ["4"],
}
# breaks what SGLang's registry resolves while it applies hooks, after the contract has passed
BREAK_ONE_HOOK = """
import pkgutil, sys
resolve = pkgutil.resolve_name
def resolve_unless_applying(name):
    caller = sys._getframe(1).f_code.co_name
    if caller == "_apply_target" and name == "{target}":
        raise AttributeError("gone")
    return resolve(name)
pkgutil.resolve_name = resolve_unless_applying
"""


def refused(server: Server) -> str:
    """Start it, see it end by itself with an error within a minute, and return its log."""
    start = time.monotonic()
    with server:
        with pytest.raises(ServerError, match="exited with"):
            server.wait_ready()
        assert server.process.returncode not in (0, None)
    assert time.monotonic() - start < SECONDS
    return server.log.read_text()


def only_message(log: str) -> str:
    """The one refusal in a log, from its first line to the last."""
    assert log.count("fix:") == 1, log[-3000:]
    return log[log.index("sglang_oea: ") :]


@pytest.fixture(scope="session")
def malformed(workspace: Path) -> dict[tuple[str, str], subprocess.CompletedProcess]:
    """The launcher started with each malformed setting; two at a time, for it is slow to import."""

    def launch(setting: tuple[str, str]) -> subprocess.CompletedProcess:
        server = Server(Path("nowhere"), log=workspace / "unused", settings=dict([setting]))
        return subprocess.run(
            server.command, env=server.environment, capture_output=True, text=True, timeout=SECONDS
        )

    settings = [(name, value) for name, values in MALFORMED.items() for value in values]
    with ThreadPoolExecutor(2) as pool:
        return dict(zip(settings, pool.map(launch, settings), strict=True))


@pytest.mark.parametrize(
    ("name", "value"), [(name, value) for name in MALFORMED for value in MALFORMED[name]]
)
def test_malformed_setting_stops_the_launcher(malformed, name, value):
    """Before any weight is looked for."""
    run = malformed[name, value]
    assert run.returncode == 1
    message = only_message(run.stderr)
    assert f"{name}={value}" in message
    assert "SGLANG_OEA_K0" in message


@pytest.fixture(scope="session")
def dense(workspace: Path) -> Path:
    """A model without experts."""
    from transformers import Qwen3Config, Qwen3ForCausalLM

    tokenizer = make_tokenizer()
    config = Qwen3Config(
        vocab_size=len(tokenizer),
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        eos_token_id=tokenizer.eos_token_id,
    )
    folder = workspace / "dense"
    Qwen3ForCausalLM(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def test_dense_model(workspace, dense):
    """Nothing to reroute: every figure of such a server would be stock's."""
    server = Server(
        dense, log=workspace / "dense.log", settings={"SGLANG_OEA_K0": "4"}, flags=FLAGS
    )
    message = only_message(refused(server))
    assert "a model without MoE layers" in message


def test_not_strict_serves_the_dense_model_as_stock(workspace, dense):
    """`SGLANG_OEA_STRICT=0`: it serves, and the log says at ERROR that it is stock."""
    server = Server(
        dense,
        log=workspace / "dense-not-strict.log",
        settings={"SGLANG_OEA_K0": "4", "SGLANG_OEA_STRICT": "0"},
        flags=(*FLAGS, "--log-level=error"),
    )
    with server:
        server.wait_ready()
        assert server.oea() == {"enabled": False}
    assert "stock SGLang is served" in only_message(server.log.read_text())


@pytest.mark.parametrize(
    ("name", "flags", "settings", "named"),
    [
        (
            "deterministic",
            ["--enable-deterministic-inference", "--attention-backend=triton"],
            {},
            "--enable-deterministic-inference",
        ),
        (
            "speculative",
            ["--speculative-algorithm=NGRAM", "--speculative-num-draft-tokens=4"],
            {},
            "SGLANG_OEA_MODES=decode,verify",
        ),
        ("simulated", [], {"SGLANG_SIMULATE_UNIFORM_EXPERTS": "1"}, "SIMULATE"),
    ],
)
def test_conflicting_arguments(workspace, name, flags, settings, named):
    """Before the weights load."""
    server = Server(
        cached("glm4-moe", "tiny"),
        log=workspace / f"{name}.log",
        settings={"SGLANG_OEA_K0": "4", **settings},
        flags=(*FLAGS, *flags),
    )
    log = refused(server)
    assert named in only_message(log)
    assert "Load weight begin" not in log


@pytest.mark.parametrize(
    ("target", "named"),
    [
        ("sglang.srt.layers.moe.topk", "_post_process_topk_ids"),
        ("sglang.srt.model_executor.model_runner.ModelRunner", "load_model"),
    ],
)
def test_hook_that_fails_to_apply_does_not_leave_a_stock_server(workspace, target, named):
    """The contract passed, SGLang swallowed the failure, and one of the two seams notices."""
    folder = workspace / f"break-{named}"
    folder.mkdir()
    (folder / "sitecustomize.py").write_text(BREAK_ONE_HOOK.format(target=target))
    server = Server(
        cached("glm4-moe", "tiny"),
        log=workspace / f"break-{named}.log",
        settings={"SGLANG_OEA_K0": "4", "PYTHONPATH": str(folder)},
        flags=FLAGS,
    )
    assert named in only_message(refused(server))

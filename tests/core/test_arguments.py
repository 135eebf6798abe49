"""Server arguments under which OEA is refused, on the object that decides."""

from types import SimpleNamespace

import pytest

from sglang_oea.core import arguments, config

DECODE = config.from_environment({"SGLANG_OEA_K0": "4"})
VERIFY = config.from_environment({"SGLANG_OEA_K0": "4", "SGLANG_OEA_MODES": "decode,verify"})

TRACE = config.from_environment({"SGLANG_OEA_K0": "4", "SGLANG_OEA_TRACE": "folder"})
ONLY_VERIFY = config.from_environment({"SGLANG_OEA_K0": "4", "SGLANG_OEA_MODES": "verify"})


def args(**changes) -> SimpleNamespace:
    """Resolved server arguments of a plain tensor-parallel server."""
    plain = dict(
        enable_deterministic_inference=False,
        speculative_algorithm=None,
        is_embedding=False,
        dllm_algorithm=None,
        enable_dp_attention=False,
        attn_dp_size=None,
        moe_a2a_backend="none",
        enable_two_batch_overlap=False,
        ep_dispatch_algorithm=None,
        enable_mixed_chunk=False,
        disaggregation_mode="null",
        device="cuda",
        enable_torch_compile=False,
        cuda_graph_config={"decode": {"backend": "full"}, "prefill": {"backend": "breakable"}},
        disable_cuda_graph=False,
        dp_size=1,
        pp_size=1,
    )
    return SimpleNamespace(**plain | changes)


def test_plain_server_is_admitted():
    """Nothing to refuse, also in a release that lacks every one of these arguments."""
    assert arguments.conflict(args(), DECODE, simulated=False) is None
    assert arguments.conflict(SimpleNamespace(), DECODE, simulated=False) is None


@pytest.mark.parametrize(
    ("changes", "settings", "named"),
    [
        (dict(enable_deterministic_inference=True), DECODE, "--enable-deterministic-inference"),
        (dict(speculative_algorithm="EAGLE"), DECODE, "SGLANG_OEA_MODES=decode,verify"),
        (dict(enable_dp_attention=True), DECODE, "data-parallel attention"),
        (dict(attn_dp_size=2), DECODE, "data-parallel attention"),
        (dict(enable_two_batch_overlap=True), DECODE, "--enable-two-batch-overlap"),
        (dict(), ONLY_VERIFY, "SGLANG_OEA_MODES=decode"),
        (dict(is_embedding=True), DECODE, "--is-embedding"),
        (dict(dllm_algorithm="LowConfidence"), DECODE, "--dllm-algorithm"),
        (dict(ep_dispatch_algorithm="fake"), DECODE, "--ep-dispatch-algorithm"),
    ],
)
def test_conflicts_are_refused_by_name(changes, settings, named):
    """Each is one refusal, which names the flag or the variable that resolves it."""
    refusal = arguments.conflict(args(**changes), settings, simulated=False)
    assert isinstance(refusal, SystemExit)
    assert named in str(refusal)


GRAPHS = {
    "0.5.23": lambda backend: dict(cuda_graph_config={"decode": {"backend": backend}}),
    "0.5.18": lambda backend: dict(
        cuda_graph_config=Graphs(decode=SimpleNamespace(backend=backend))
    ),
    "0.5.9": lambda backend: dict(cuda_graph_config=None, disable_cuda_graph=backend == "disabled"),
}


class Graphs(SimpleNamespace):
    """SGLang's `CudaGraphConfig`, which can be indexed by phase."""

    def __getitem__(self, phase: str) -> SimpleNamespace:
        return getattr(self, phase)


@pytest.mark.parametrize("release", GRAPHS)
def test_trace_of_captured_graphs_is_refused(release):
    """Holds that each release's own record of its decode graphs is read."""
    captured, eager = (args(**GRAPHS[release](backend)) for backend in ("full", "disabled"))
    assert "--disable-cuda-graph" in str(arguments.conflict(captured, TRACE, simulated=False))
    assert arguments.conflict(captured, DECODE, simulated=False) is None
    assert arguments.conflict(eager, TRACE, simulated=False) is None


def test_trace_on_the_cpu_needs_no_flag():
    """Holds that SGLang has graphs there with torch.compile only."""
    cpu, compiled = args(device="cpu"), args(device="cpu", enable_torch_compile=True)
    assert arguments.conflict(cpu, TRACE, simulated=False) is None
    assert "captured" in str(arguments.conflict(compiled, TRACE, simulated=False))


@pytest.mark.parametrize("changes", [dict(dp_size=2), dict(pp_size=2)])
def test_trace_of_several_schedulers_is_refused(changes):
    """Holds that two processes never write into one folder."""
    eager = args(**changes, **GRAPHS["0.5.23"]("disabled"))
    assert "--dp-size or --pp-size" in str(arguments.conflict(eager, TRACE, simulated=False))
    assert arguments.conflict(eager, DECODE, simulated=False) is None


@pytest.mark.parametrize(
    ("flags", "eager"),
    [
        ([], False),
        (["--disable-prefill-cuda-graph"], False),
        (["--disable-cuda-graph"], True),
        (["--disable-decode-cuda-graph"], True),
        (["--cuda-graph-backend-decode=disabled"], True),
        (['--cuda-graph-config={"decode": {"backend": "disabled"}}'], True),
        (["--disable-cuda-graph", "--cuda-graph-backend-decode=full"], False),
    ],
)
def test_flags_of_the_installed_release_that_trace_accepts(flags, eager):
    """Holds that it is the outcome that counts, whichever of SGLang's flags led to it."""
    from sglang.srt.arg_groups.cuda_graph_hook import parse_cuda_graph_config
    from sglang.srt.server_args import prepare_server_args

    server_args = prepare_server_args(["--model-path=none", "--device=cuda", *flags])
    parse_cuda_graph_config(server_args)
    refusal = arguments.conflict(arguments.resolved(server_args), TRACE, simulated=False)
    assert (refusal is None) == eager


def test_routing_simulation_is_refused():
    """Balanced fake experts would make T and speed meaningless."""
    assert "SIMULATE" in str(arguments.conflict(args(), DECODE, simulated=True))


def test_what_resolves_a_conflict_is_admitted():
    """Verify mode with speculation, an all-to-all backend with data-parallel attention."""
    assert arguments.conflict(args(speculative_algorithm="EAGLE"), VERIFY, simulated=False) is None
    gathered = args(attn_dp_size=2, moe_a2a_backend="deepep")
    assert arguments.conflict(gathered, DECODE, simulated=False) is None


def test_prefill_server_is_stock_by_nature():
    """The decode server of the same pair is not."""
    assert arguments.is_stock_by_nature(args(disaggregation_mode="prefill"))
    assert not arguments.is_stock_by_nature(args(disaggregation_mode="decode"))


def test_mixed_chunks_are_warned_of(caplog):
    """They run as prefill, so they lower the gain, but refusing them would be too much."""
    arguments.warn(args(enable_mixed_chunk=True))
    assert "--enable-mixed-chunk" in caplog.text


def test_every_argument_that_is_read_exists_in_the_installed_release():
    """A renamed argument would silently never conflict."""
    from sglang.srt.server_args import prepare_server_args

    read = prepare_server_args(["--model-path=none"]).resolved_dict()
    assert set(vars(args())) <= set(read)


def test_what_sglang_decides_itself_counts():
    """0.5.23 keeps the arguments as typed and what it makes of them in another place."""
    typed = SimpleNamespace(
        enable_two_batch_overlap=False, resolved_dict=lambda: {"enable_two_batch_overlap": True}
    )
    assert arguments.resolved(typed).enable_two_batch_overlap
    plain = args()
    assert arguments.resolved(plain) is plain

"""A server that records: its trace routes again, offline, to what it served, expert for expert."""

import re
from typing import NamedTuple

import pytest
import torch
from demo import MODEL
from serving import Server

from server.conftest import FLAGS
from server.load import ROWS, TOKENS, TOP_K, counted, generate, tokens
from sglang_oea.core.scores import from_logits
from sglang_oea.lab.policies import Batch, Policy
from sglang_oea.lab.replay import Replay, replay
from sglang_oea.lab.trace import Trace, read

pytestmark = pytest.mark.server
STEPS, MOE_LAYERS = 40, 4


class Recorded(NamedTuple):
    """What one server did and said: in the middle of its recording, and after it."""

    trace: Trace
    replay: Replay
    # /server_info when the trace was read, and what the sixteen requests added to it
    proof: dict
    counters: dict[str, int]
    # of the same requests, by SGLang's own recorder: [layers, experts] tokens, one each forward
    passes: list[torch.Tensor]
    answers: list[list[int]]
    later_trace: Trace
    later_answers: list[list[int]]
    later_proof: dict
    log: str


@pytest.fixture(scope="module")
def recorded(workspace) -> Recorded:
    """Sixteen requests while a server records, and the same again until it has enough."""
    folder, dumps = workspace / "trace", workspace / "trace-dumps"
    server = Server(
        MODEL,
        log=workspace / "trace.log",
        settings={
            "SGLANG_OEA_K0": "4",
            "SGLANG_OEA_TRACE": str(folder),
            "SGLANG_OEA_TRACE_STEPS": str(STEPS),
            "SGLANG_EXPERT_DISTRIBUTION_RECORDER_DIR": str(dumps),
        },
        flags=FLAGS,
    )
    with server:
        server.wait_ready()
        server.post("/start_expert_distribution_record", {})
        answers, counters = counted(server, lambda: tokens(generate(server)))
        server.post("/stop_expert_distribution_record", {})
        server.post("/dump_expert_distribution_record", {})
        trace, proof = read(folder), server.oea()
        later_answers = tokens(generate(server))
        later_proof = server.oea()
    (dump,) = dumps.glob("*.pt")
    records = torch.load(dump, weights_only=False)["records"]
    return Recorded(
        trace,
        replay(trace),
        proof,
        counters,
        [record["global_physical_count"] for record in records],
        answers,
        read(folder),
        later_answers,
        later_proof,
        server.log.read_text(),
    )


def test_replay_equals_what_the_server_chose(recorded):
    """Every id in every call, and weights; of a batch that OEA did change."""
    assert recorded.replay.first is None
    assert (recorded.replay.wrong_ids, recorded.replay.wrong_weights) == (0, 0)
    assert recorded.replay.counters["slots_rerouted"] > 0


def test_evaluation_chooses_what_the_server_chose(recorded):
    """The policy that `sglang-oea eval` measures, on what the demo model's routers said."""
    oea = Policy.parse("oea:k0=4")
    full = [call for call in recorded.trace.calls() if call.valid.sum() == ROWS]
    assert len(full) == (TOKENS - 1) * MOE_LAYERS
    for call in full:
        scores = from_logits(call.logits, call.router.scoring, correction_bias=call.bias)
        stock = (call.stock_ids.long(), call.stock_weights)
        tensors = (tensor.unsqueeze(0) for tensor in (*scores, *stock))
        weights, ids = oea(Batch(*tensors, call.router.renormalize))
        assert ids[0].tolist() == call.ids.tolist()
        torch.testing.assert_close(weights[0], call.weights, rtol=1e-5, atol=0)


def test_counters_of_the_server_agree_with_the_trace(recorded):
    """All decode forwards so far are in the trace, warm-up included."""
    assert not recorded.trace.complete
    assert recorded.replay.counters == {
        name: recorded.proof[name] for name in recorded.replay.counters
    }
    full = [call for call in recorded.trace.calls() if call.valid.sum() == ROWS]
    assert len(full) == recorded.counters["calls"] == (TOKENS - 1) * MOE_LAYERS


def test_recorded_ids_are_the_ones_that_were_executed(recorded):
    """SGLang's own recorder counts the tokens of each expert alike, forward by forward."""
    decode = [count for count in recorded.passes if count.sum() == ROWS * TOP_K * MOE_LAYERS]
    full = [call for call in recorded.trace.calls() if call.valid.sum() == ROWS]
    layers = sorted(recorded.trace.routers)
    assert len(decode) * MOE_LAYERS == len(full)
    first = full[0].step
    for call in full:
        routed = call.ids[call.valid, : call.router.slots].flatten()
        counts = torch.bincount(routed, minlength=call.logits.shape[-1])
        # SGLang's recorder numbers all layers of the model, or its MoE layers alone
        by_layer = [line for line in decode[call.step - first] if line.sum()]
        assert counts.tolist() == by_layer[layers.index(call.layer_id)].tolist()


def test_recording_ends_and_serving_goes_on(recorded):
    """No more forwards than asked for; the answers do not depend on whether it records."""
    trace = recorded.later_trace
    assert trace.complete and len(trace.steps) == STEPS
    assert trace.steps[: len(recorded.trace.steps)] == recorded.trace.steps
    assert replay(trace).first is None
    assert recorded.later_answers == recorded.answers
    assert recorded.later_proof["calls"] > STEPS * MOE_LAYERS
    assert len(re.findall("forwards will be recorded in", recorded.log)) == 1
    assert f"{STEPS} forwards are recorded" in recorded.log

"""OEA over HTTP: stock where it must be, fewer experts where it may, and proof of both."""

import json
import urllib.error

import pytest

from server.load import PROMPTS, ROWS, TOKENS, TOP_K, counted, generate, tokens

pytestmark = pytest.mark.server


def test_k0_of_top_k_answers_as_stock_token_by_token(oea, stock):
    """`k0 >= K` is stock routing, in a batch of sixteen."""
    expected = tokens(generate(stock))
    for k0 in (TOP_K, TOP_K + 5):
        oea.set_k0(k0)
        assert tokens(generate(oea)) == expected


def test_live_zero_answers_as_stock(oea, stock):
    """Off: the step stays in place and changes nothing."""
    oea.set_k0(0)
    answers, counters = counted(oea, lambda: generate(oea))
    assert tokens(answers) == tokens(generate(stock))
    assert counters["slots_rerouted"] == 0
    assert counters["experts_after"] == counters["experts_before"] > 0


@pytest.mark.parametrize("k0", [1, 4])
def test_one_request_alone_answers_as_stock(oea, stock, k0):
    """One row's union is its own selection: invariant 4."""
    oea.set_k0(k0)
    alone = [PROMPTS[3]]
    answers, counters = counted(oea, lambda: generate(oea, alone))
    assert tokens(answers) == tokens(generate(stock, alone))
    assert counters["experts_after"] == counters["calls"] * TOP_K
    assert counters["slots_rerouted"] == 0


@pytest.mark.parametrize("k0", [1, 4])
def test_prefill_is_never_rerouted(oea, stock, k0):
    """Prompt log-probabilities are those of stock at any k0, bit for bit."""
    oea.set_k0(k0)
    asked = dict(return_logprob=True, logprob_start_len=0)

    def prompt_logprobs(server):
        answers = generate(server, **asked)
        return [answer["meta_info"]["input_token_logprobs"] for answer in answers]

    assert prompt_logprobs(oea) == prompt_logprobs(stock)


def test_sixteen_at_once_activate_fewer_experts(oea, kind):
    """T falls with k0, the answers change, and the counters follow the live k0."""
    active = {}
    for k0 in (8, 5, 3, 1):
        oea.set_k0(k0)
        _, counters = counted(oea, lambda: generate(oea))
        assert counters["rows"] == (TOKENS - 1) * ROWS * oea.oea()["layers"]["moe"]
        active[k0] = counters["experts_after"] / counters["calls"]
        assert (counters["slots_rerouted"] > 0) == (k0 < TOP_K)
    assert active[8] > active[5] > active[3] > active[1] >= TOP_K


def test_server_info_is_the_proof(oea, kind):
    """The field of the design, with every MoE layer of the model rerouted."""
    oea.set_k0(4)
    proof = oea.oea()
    moe = {"glm4-moe": 2, "qwen3-moe": 2}[kind]
    assert proof["enabled"] is True
    assert proof["k0"] == 4
    assert proof["impl"] == "torch"
    assert proof["modes"] == ["decode"]
    assert proof["layers"] == {"moe": moe, "rerouted": moe}
    assert list(proof) == [
        *("version", "enabled", "impl", "k0", "modes", "layers"),
        *("calls", "rows", "experts_before", "experts_after", "slots_rerouted"),
    ]


def test_log_says_once_that_it_is_on(oea, kind):
    """One line, at the first rerouted forward."""
    lines = [line for line in oea.log.read_text().splitlines() if "is on: k0=" in line]
    assert len(lines) == 1
    assert "2 of 2 MoE layers rerouted" in lines[0]


def test_stock_server_shows_nothing_of_oea(stock, kind):
    """Without the variable there is no field, no hook and no line in the log."""
    assert stock.oea() == {}
    assert "sglang_oea" not in stock.log.read_text()


@pytest.mark.parametrize("value", [-1, 1.5, True, "4", "four", None])
def test_nonsense_is_rejected_and_changes_nothing(oea, value):
    """Explained with status 400; SGLang alone would take `true` for 1."""
    oea.set_k0(4)
    with pytest.raises(urllib.error.HTTPError) as error:
        oea.post("/set_internal_state", {"server_args": {"oea_k0": value}})
    assert error.value.code == 400
    assert "expected a whole number" in json.loads(error.value.read())["error"]["message"]
    assert oea.oea()["k0"] == 4


def test_unknown_live_key_is_still_refused_by_sglang(oea):
    """Only `oea_k0` was added."""
    assert oea.post("/set_internal_state", {"server_args": {"oea_modes": 1}}) == [False]

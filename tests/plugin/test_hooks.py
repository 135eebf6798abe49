"""Never silently stock: what the hooks refuse, on the objects that decide."""

import logging
from types import SimpleNamespace

import pytest
import torch

from plugin.routers import HIDDEN, logits, topk_config
from sglang_oea.core import config, ranks
from sglang_oea.core.version import __version__
from sglang_oea.plugin import contract, hooks


def runner(**changes) -> SimpleNamespace:
    """As much of a `ModelRunner` as the hook reads before the weights load."""
    return SimpleNamespace(**dict(is_draft_worker=False, server_args=SimpleNamespace()) | changes)


def fresh_host(strict: bool = True) -> hooks.Plugin:
    """A host of its own, for what would spoil the shared one."""
    strictness = "1" if strict else "0"
    return hooks.Plugin(
        config.from_environment({"SGLANG_OEA_K0": "3", "SGLANG_OEA_STRICT": strictness})
    )


def test_hooks_are_applied_and_seen_in_importing_modules(attached):
    """SGLang rebinds names that were imported before; ours must be the ones that run."""
    from sglang.srt.layers.moe import mega_gate, topk

    assert topk.select_experts is not attached.stock[contract.SELECT_EXPERTS]
    assert mega_gate._post_process_topk_ids is topk._post_process_topk_ids


def test_model_load_that_was_not_seen_is_refused_at_the_first_forward(host):
    """The other direction: the load hook itself did not arrive, so no gate would ever open."""
    host.model_seen = False
    from sglang.srt.layers.moe import topk

    with pytest.raises(config.Refusal, match="load_model"):
        topk.select_experts(torch.zeros(2, HIDDEN), logits(0, rows=2), topk_config("sigmoid"))


def test_conflict_is_refused_before_the_weights_load(host):
    """A 400 GB checkpoint takes minutes to load."""
    speculative = runner(server_args=SimpleNamespace(speculative_algorithm="EAGLE"))
    with pytest.raises(config.Refusal, match="decode,verify"):
        host.load_model(lambda runner: pytest.fail("weights were loaded"), speculative)


def test_not_strict_serves_stock_and_says_so(attached, caplog):
    """`SGLANG_OEA_STRICT=0`: the model loads, nothing is rerouted, one error tells why."""
    host = fresh_host(strict=False)
    with caplog.at_level(logging.ERROR, "sglang_oea"):
        assert host.load_model(lambda runner: "loaded", runner()) == "loaded"
    assert host.session.rerouter is None
    assert "SGLANG_OEA_STRICT=0" in caplog.text
    assert [record.levelno for record in caplog.records] == [logging.ERROR]


def test_draft_model_is_not_touched(host):
    """Only the target decodes for the user; a draft proposes."""
    draft = runner(is_draft_worker=True, model=torch.nn.Linear(1, 1))
    stock_forward = draft.model.forward
    assert host.load_model(lambda runner: "loaded", draft) == "loaded"
    assert host.session.rerouter is None
    assert draft.model.forward == stock_forward


def test_prefill_server_stays_stock_and_says_so(host, caplog):
    """A disaggregated prefill server is stock by nature, not refused."""
    prefill = runner(server_args=SimpleNamespace(disaggregation_mode="prefill"))
    with caplog.at_level(logging.INFO, "sglang_oea"):
        assert host.load_model(lambda runner: "loaded", prefill) == "loaded"
    assert host.session.rerouter is None
    assert "never decodes" in caplog.text


class Routed(torch.nn.Module):
    """As much of a model as the load hook looks at: one router, one parameter, one forward."""

    def __init__(self, output_format: str):
        from sglang.srt.layers.moe.topk import TopK, TopKOutputFormat

        super().__init__()
        self.anything = torch.nn.Parameter(torch.zeros(1))
        # built by hand: SGLang's constructor wants a published server configuration
        self.topk = TopK.__new__(TopK)
        torch.nn.Module.__init__(self.topk)
        self.topk.layer_id, self.topk.is_draft = 0, False
        self.topk.topk_config = topk_config(
            "sigmoid", output_format=TopKOutputFormat[output_format]
        )

    def forward(self, input_ids, positions, forward_batch):
        """Never called."""


@pytest.fixture
def one_rank(monkeypatch):
    """A tensor-parallel group that nobody has to initialise."""
    import sglang.srt.distributed as distributed

    monkeypatch.setattr(distributed, "get_tp_group", lambda: SimpleNamespace(cpu_group=None))
    monkeypatch.setattr(ranks, "disagreement", lambda fingerprint, group: None)


def test_loaded_model_is_watched(host, one_rank):
    """The load hook builds the rerouter and wraps the model's own forward."""
    loaded = runner(model=Routed("STANDARD"))
    host.load_model(lambda runner: None, loaded)
    assert sorted(host.session.rerouter.layers) == [0]
    assert loaded.model.forward.__wrapped__ == Routed.forward.__get__(loaded.model)


@pytest.mark.parametrize("output_format", ["BYPASSED", "TRITON_KERNEL"])
def test_model_that_routes_inside_its_kernel_is_refused(host, one_rank, output_format):
    """`select_experts` is never called for it, and nothing must have been wrapped."""
    loaded = runner(model=Routed(output_format))
    with pytest.raises(config.Refusal, match=f"layer 0: .*{output_format}"):
        host.load_model(lambda runner: None, loaded)
    assert "forward" not in vars(loaded.model)
    assert host.session.rerouter is None


def test_ranks_that_differ_are_refused(host, one_rank, monkeypatch):
    """The comparison of `core/ranks.py` is wired, with the fingerprint of settings and version."""
    seen = []

    def differ(fingerprint, group):
        seen.append(fingerprint)
        return config.Refusal("ranks", where="", got="", expected="", fix="")

    monkeypatch.setattr(ranks, "disagreement", differ)
    loaded = runner(model=Routed("STANDARD"))
    with pytest.raises(config.Refusal, match="ranks"):
        host.load_model(lambda runner: None, loaded)
    assert seen == [host.session.settings.fingerprint(__version__, "torch")]
    assert "forward" not in vars(loaded.model)


def test_routers_that_share_a_number_are_refused(host, one_rank):
    """One line of counters and one router for two layers would be wrong for both."""
    loaded = runner(model=torch.nn.ModuleList([Routed("STANDARD"), Routed("STANDARD")]))
    with pytest.raises(config.Refusal, match="two routers 0"):
        host.load_model(lambda runner: None, loaded)


def test_patched_sglang_does_the_work_itself(monkeypatch, caplog):
    """Plugin and patch both present: one of them runs, once, and it is said which."""
    monkeypatch.setattr(contract, "carries_patch", lambda: True)
    monkeypatch.setattr(contract, "problems", lambda: pytest.fail("the contract was checked"))
    settings = config.from_environment({"SGLANG_OEA_K0": "3"})
    with caplog.at_level(logging.WARNING, "sglang_oea"):
        assert hooks.attach(settings) is None
    assert "patch" in caplog.text


def test_untested_release_is_accepted_with_a_warning(monkeypatch, caplog):
    """The contract decides, the version only warns."""
    from sglang.srt.plugins.hook_registry import HookRegistry

    monkeypatch.setattr(contract, "installed_version", lambda: "0.5.99")
    monkeypatch.setattr(HookRegistry, "register", lambda target, hook, kind: None)
    with caplog.at_level(logging.WARNING, "sglang_oea"):
        hooks.attach(config.from_environment({"SGLANG_OEA_K0": "3"}))
    assert "0.5.99 was never tested" in caplog.text

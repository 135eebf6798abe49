"""The contract as data: what holds here, and how a host that does not meet it is named."""

from types import SimpleNamespace

import pytest

from sglang_oea.plugin import contract
from sglang_oea.plugin.contract import Item


def test_installed_release_meets_every_item():
    """Optional ones too: 0.5.23 has live k0."""
    assert contract.problems() == []
    assert [item.path for item in contract.CONTRACT if item.problem()] == []


@pytest.mark.parametrize(
    ("item", "named"),
    [
        (Item("sglang.srt.layers.moe.topk.chooses_experts", (), "x"), "chooses_experts"),
        (Item("sglang.srt.layers.no_such_module.f", (), "x"), "no_such_module"),
        (Item(contract.SELECT_EXPERTS, ("hidden_states", "no_such_name"), "x"), "no_such_name"),
        (Item("sglang.srt.layers.moe.topk.TopKConfig", ("no_field",), "x"), "no_field"),
        (Item("sglang.srt.layers.moe.topk.StandardTopKOutput", ("no_field",), "x"), "no_field"),
    ],
)
def test_what_is_missing_is_named(item, named):
    """A symbol, a module, a parameter, a dataclass field, a tuple field."""
    (problem,) = contract.problems((item,))
    assert named in problem
    assert "hidden_states" not in problem.split("has no")[-1]


def test_refusal_names_symbol_and_supported_releases():
    """What to install is part of the message."""
    message = str(contract.refusal_of(["a.b is not there"]))
    assert "a.b is not there" in message
    assert "0.5.23" in message


def test_optional_items_do_not_refuse(monkeypatch):
    """Live k0 is unavailable then, and rerouting works."""
    optional = Item("sglang.srt.nowhere.at_all", (), "handlers", "live k0")
    assert contract.problems((optional,)) == []
    monkeypatch.setattr(contract, "CONTRACT", (optional,))
    assert not contract.available("live k0")


@pytest.mark.parametrize(("file", "patched"), [("__init__.py", True), ("__pycache__/x.pyc", False)])
def test_patch_is_known_by_its_file(monkeypatch, tmp_path, file, patched):
    """A folder of bytecode, left by a patch that was reversed by hand, is no patch."""
    left = tmp_path / "srt" / "layers" / "moe" / "oea" / file
    left.parent.mkdir(parents=True)
    left.touch()
    found = SimpleNamespace(submodule_search_locations=[str(tmp_path)])
    monkeypatch.setattr(contract.importlib.util, "find_spec", lambda name: found)
    assert contract.carries_patch() is patched

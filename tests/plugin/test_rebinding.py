"""Hooks without a registry: one function, replaced wherever it is bound."""

import functools
import inspect
import sys
from collections.abc import Callable
from types import ModuleType

import pytest

from sglang_oea.plugin import rebinding

SOURCE = '''
def double(number: int, *, times: int = 2) -> int:
    """What `host` and others call."""
    return number * times


class Runner:
    def __init__(self, start):
        self.start = start

    def load(self, more=0):
        return self.start + more


class Draft(Runner):
    pass
'''


@pytest.fixture
def host(monkeypatch) -> ModuleType:
    """A module `host`, as imported: fresh functions, since hooks stay in them."""
    module = ModuleType("host")
    exec(SOURCE, vars(module))
    monkeypatch.setitem(sys.modules, "host", module)
    return module


@pytest.fixture
def importer(monkeypatch, host) -> ModuleType:
    """A module that has imported the function already, once by its name and once by another."""
    module = ModuleType("importer")
    module.double, module.twice, module.other = host.double, host.double, len
    monkeypatch.setitem(sys.modules, "importer", module)
    return module


def counting(calls: list) -> Callable:
    """A hook that notes what it was given, and adds 100."""

    def hook(original, *args, **kwargs):
        calls.append((args, kwargs))
        return original(*args, **kwargs) + 100

    return hook


def test_function_of_a_module(host):
    """Holds that a call runs the hook, which gets the function and the arguments as they came."""
    calls = []
    rebinding.around("host.double", counting(calls))
    assert host.double(4, times=3) == 112
    assert calls == [((4,), {"times": 3})]


def test_method_of_a_class(host):
    """Holds that the instance comes first, and that instances made before are hooked as well."""
    calls, early = [], host.Runner(5)
    rebinding.around("host.Runner.load", counting(calls))
    late = host.Draft(7)
    assert (early.load(1), late.load(more=2)) == (106, 109)
    assert calls == [((early, 1), {}), ((late,), {"more": 2})]


def test_name_that_was_imported_before(host, importer):
    """Holds that an earlier `from topk import select_experts` does not keep the stock function."""
    rebinding.around("host.double", counting([]))
    assert importer.double is importer.twice is host.double
    assert importer.twice(1) == 102
    assert importer.other is len


def test_second_name_in_the_module_itself(host):
    """Holds for `grouped_topk = grouped_topk_gpu`, as SGLang chooses its functions."""
    host.double_gpu = host.double
    rebinding.around("host.double", counting([]))
    assert host.double_gpu(1) == host.double(1) == 102


@pytest.mark.parametrize("path", ["host.double", "host.Runner.load"])
def test_two_hooks_on_one_function(path, host):
    """Holds that a process which attaches twice reroutes once: an experts' union of a union is not
    what was asked for.
    """
    first, second = [], []
    rebinding.around(path, counting(first))
    rebinding.around(path, counting(second))
    assert host.Runner(2).load() == (102 if path.endswith("load") else 2)
    assert host.double(1) == (102 if path.endswith("double") else 2)
    assert (len(first), second) == (1, [])


def test_two_names_of_one_function(host):
    """Holds for 0.5.9 on the CPU, whose `fused_topk` and `fused_topk_native` are one function."""
    host.double_cpu, calls = host.double, []
    rebinding.around("host.double", counting(calls))
    rebinding.around("host.double_cpu", counting(calls))
    assert host.double_cpu(1) == 102
    assert len(calls) == 1


def test_somebody_elses_wrapper_around_it(host):
    """Holds that the function is recognised below a decorator that keeps its attributes."""
    rebinding.around("host.double", counting([]))
    hooked, calls = host.double, []

    @functools.wraps(hooked)
    def decorated(*args, **kwargs):
        return hooked(*args, **kwargs)

    host.double = decorated
    rebinding.around("host.double", counting(calls))
    assert host.double(1) == 102
    assert calls == []


def test_signature_and_name_are_kept(host):
    """Holds that SGLang and the contract can go on inspecting what is hooked."""
    stock = host.double
    rebinding.around("host.double", counting([]))
    assert host.double is not stock
    assert host.double.__wrapped__ is stock
    assert inspect.signature(host.double) == inspect.signature(stock)
    for name in ("__name__", "__qualname__", "__module__", "__doc__", "__annotations__"):
        assert getattr(host.double, name) == getattr(stock, name)


def test_modules_that_compute_their_attributes(host, importer, monkeypatch):
    """Holds that looking for stale names imports nothing and trips over nothing.

    `transformers` and others answer any name by an import, and `sys.modules` may hold what is no
    module at all.
    """

    class Lazy(ModuleType):
        def __getattr__(self, name):
            pytest.fail(f"{name} was computed")

    def computed(name):
        pytest.fail(f"{name} was computed")

    lazy, with_function = Lazy("lazy"), ModuleType("with_function")
    with_function.__getattr__ = computed
    monkeypatch.setitem(sys.modules, "lazy", lazy)
    monkeypatch.setitem(sys.modules, "with_function", with_function)
    monkeypatch.setitem(sys.modules, "blocked", None)
    monkeypatch.setitem(sys.modules, "object", object())
    rebinding.around("host.double", counting([]))
    assert importer.double(1) == 102


def test_what_is_not_there(host):
    """Holds that a wrong path is an error, and changes nothing."""
    before = dict(vars(host))
    with pytest.raises(AttributeError, match="triple"):
        rebinding.around("host.triple", counting([]))
    assert vars(host) == before


def test_error_of_the_function_is_the_callers(host):
    """Holds that a hooked function raises what it raised before."""
    rebinding.around("host.double", counting([]))
    with pytest.raises(TypeError, match="no_such"):
        host.double(1, no_such=2)

"""What a caller of `reroute` may rely on besides the invariants: inputs, errors, CUDA graphs."""

from dataclasses import replace

import pytest
import torch
from cases import CI, cases, plain
from hypothesis import given, settings
from torch.utils._python_dispatch import TorchDispatchMode

from sglang_oea.core.routing import reroute

EXAMPLES = settings(CI, max_examples=200)


@EXAMPLES
@given(cases())
def test_inputs_are_not_mutated(case):
    """Holds that the stock selection can still be counted after rerouting."""
    tensors = [value for value in vars(case).values() if isinstance(value, torch.Tensor)]
    copies = [tensor.clone() for tensor in tensors]
    case.run()
    for tensor, copy in zip(tensors, copies, strict=True):
        torch.testing.assert_close(tensor, copy, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize(
    ("changes", "error", "said"),
    [
        ({"choice": torch.ones(8)}, ValueError, r"expected .*\[rows, N\].* got \[8\]"),
        ({"gate": torch.ones(2, 7)}, ValueError, r"expected .* got \[2, 8\] and \[2, 7\]"),
        ({"ids": torch.zeros(3, 2).long()}, ValueError, r"topk_ids.*expected .* got \[3, 2\]"),
        ({"weights": torch.ones(2, 3)}, ValueError, r"expected .* got \[2, 2\] and \[2, 3\]"),
        ({"ids": torch.zeros(2, 2)}, TypeError, r"topk_ids: expected .* got torch.float32"),
        ({"valid": torch.ones(2)}, ValueError, r"valid: expected bool \[2\], got torch.float32"),
        ({"valid": torch.ones(3).bool()}, ValueError, r"valid: expected bool \[2\], got .*\[3\]"),
        ({"max_rank": 0}, ValueError, "max_rank: expected at least 1, got 0"),
        ({"k0": -1}, ValueError, "k0: expected .*>= 0, got -1"),
        ({"k0": 1.5}, ValueError, "k0: expected a whole number .* got 1.5"),
        ({"k0": True}, ValueError, "k0: expected a whole number .* got True"),
        ({"k0": torch.ones(2)}, ValueError, r"k0: expected .* got torch.float32 \[2\]"),
        ({"k0": torch.ones(3).int()}, ValueError, r"k0: expected .* got torch.int32 \[3\]"),
    ],
)
def test_bad_input_is_refused(changes, error, said):
    """Holds that a misuse says what was expected and what came."""
    with pytest.raises(error, match=said):
        plain(**changes).run()


def test_more_slots_than_experts_are_refused():
    """Holds that K > N cannot silently repeat experts."""
    with pytest.raises(ValueError, match="topk_ids: 9 slots a row, but only 8 experts"):
        plain(ids=torch.arange(9).expand(2, 9), weights=torch.ones(2, 9)).run()


@pytest.mark.parametrize("k0", [1, torch.tensor(1), torch.ones(0, dtype=torch.int32)])
def test_no_rows(k0):
    """Holds that an idle rank, which has no tokens, gets its empty tensors back."""
    weights, ids = plain(rows=0, k0=k0, valid=torch.ones(0, dtype=torch.bool)).run()
    assert ids.shape == weights.shape == (0, 2)
    assert (weights.dtype, ids.dtype) == (torch.float32, torch.int64)


class _GraphLegal(TorchDispatchMode):
    """Refuses what a CUDA graph capture refuses: host reads, host copies, data-dependent shapes."""

    READS = ("_local_scalar_dense", "item", "is_nonzero", "equal", "allclose")
    SHAPES = ("nonzero", "nonzero_static", "masked_select", "_unique2", "unique_dim", "bincount")
    COPIES = ("lift_fresh", "_pin_memory", "_to_cpu")

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = func.overloadpacket.__name__
        assert name not in self.READS + self.SHAPES + self.COPIES, f"{func} in a CUDA graph"
        assert "device" not in (kwargs or {}) or name != "_to_copy", f"{func} moves to a device"
        if name.startswith("index"):
            masks = [i for i in args[1] if i is not None and i.dtype == torch.bool]
            assert not masks, f"{func} by a mask looks for its nonzeros"
        return func(*args, **(kwargs or {}))


@EXAMPLES
@given(cases())
def test_no_operation_is_illegal_in_a_cuda_graph(case):
    """Holds that no step waits for the device: every dispatched operator is legal in a capture."""
    with _GraphLegal():
        case.run()


@settings(CI, max_examples=100)
@given(cases())
def test_no_operation_needs_values(case):
    """Holds the same from another side: tensors without data, on which every host read raises."""
    moved = {n: v.to("meta") for n, v in vars(case).items() if isinstance(v, torch.Tensor)}
    weights, ids = replace(case, **moved).run()
    assert weights.shape == ids.shape == case.ids.shape
    assert weights.is_meta and ids.is_meta


@pytest.mark.parametrize("k0", [1, torch.tensor(1), torch.tensor([1, 2])])
@pytest.mark.parametrize("valid", [None, torch.tensor([True, False])])
def test_compiles_to_one_graph(k0, valid):
    """Holds that nothing breaks a compiled model in two."""
    case = plain(k0=k0, valid=valid, max_rank=4, choice=torch.rand(2, 8))
    eager = case.run()
    torch._dynamo.reset()
    compiled = torch.compile(reroute, fullgraph=True, backend="eager")
    tensors = (case.choice, case.gate, case.ids, case.weights, k0)
    out = compiled(*tensors, renormalize=True, valid=valid, max_rank=4)
    assert all(torch.equal(got, want) for got, want in zip(out, eager, strict=True))

"""Counters on the device, one line a layer: written in the hot path, read outside it.

Writing is tensor arithmetic that a CUDA graph can hold; reading synchronises, so it belongs to
whoever answers `/server_info`.
"""

import torch

COLUMNS = ("reached", "calls", "rows", "experts_before", "experts_after", "slots_rerouted")


class Stats:
    """`counters` `[layers, len(COLUMNS)]` int64, sums since the start.

    reached: executions of the routing step, warm-up and graph capture included
    calls: those with at least one valid row; T of a layer is experts_after / calls
    rows: valid rows
    experts_before, experts_after: T with the stock selection, and with the rerouted one
    slots_rerouted: slots of valid rows that hold an expert which the row's stock selection did not
    """

    def __init__(self, layers: int, device: torch.device):
        self.counters = torch.zeros(layers, len(COLUMNS), dtype=torch.int64, device=device)

    def add(
        self,
        layer: int,
        before: torch.Tensor,
        after: torch.Tensor,
        valid: torch.Tensor,
        experts: int,
    ) -> None:
        """Count one routing step.

        Args:
            layer: line of the table.
            before, after: `[rows, K]` stock and rerouted ids; negative ids count as no expert.
            valid: `[rows]` bool.
            experts: N.
        """
        # [2, rows, K]: stock and rerouted, side by side
        ids = torch.stack([before, after]).long()
        counted = valid.unsqueeze(-1) & (ids >= 0)
        # [2, N]: how many slots hold an expert
        held = torch.zeros(2, experts, dtype=torch.int32, device=ids.device)
        held.scatter_add_(1, ids.clamp(0, experts - 1).flatten(1), counted.flatten(1).int())
        # [rows, K]: rerouted slots whose expert is in none of the row's stock slots
        new = (ids[1].unsqueeze(-1) != ids[0].unsqueeze(-2)).all(-1) & counted[1]
        rows = valid.sum()
        self.counters[layer].add_(
            torch.stack(
                [torch.ones_like(rows), (rows > 0).long(), rows, *(held > 0).sum(-1), new.sum()]
            )
        )

    def read(self) -> tuple[list[bool], dict[str, int]]:
        """Whether each layer was reached, and sums over layers by column. Synchronises once."""
        lines = self.counters.tolist()
        sums = dict(zip(COLUMNS, map(sum, zip(*lines, strict=True)), strict=True))
        del sums["reached"]
        return [line[0] > 0 for line in lines], sums

# SPDX-License-Identifier: Apache-2.0
"""Dispatch and combine of a rank that has masked all others: in a group of its own, so in no view's order.

Its experts are the only ones there. Ids become numbers of these, and rows are copied to where this rank's rows stand in
the outputs of the whole group. So the one engine computes them, and shapes are those of later calls.
"""

import secrets
from typing import Any, Callable, Optional

import torch

from .._plain import plain
from ._calls import Calls, Layout, Rows
from ._meeting import Meeting
from ._members import Shape


class Alone:
    """What @calls uses while it is alone."""

    def __init__(self, calls: Calls, store: Optional[str]):
        self.rank, self.calls = calls.rank, Calls(0, 1)
        self.calls.meet(Meeting(store, f"alone-{secrets.token_hex(8)}", False), 1, 0, 0)

    def close(self) -> None:
        self.calls.close(leaves=True)

    @plain
    def _own(self, ids: torch.Tensor, per_rank: int) -> torch.Tensor:
        own = ids - self.rank * per_rank
        return torch.where((own >= 0) & (own < per_rank), own, -1)

    def dispatch(self, shape: Shape, size: int, x: torch.Tensor, ids: torch.Tensor, weights: Optional[torch.Tensor],
                 after: Optional[Callable], how: dict) -> tuple:
        """@size: ranks of the group whose outputs these are."""
        if x.is_cuda and torch.cuda.is_current_stream_capturing():
            raise RuntimeError("all other ranks are masked: a graph that is captured so would never see them again; "
                               "capture it when they are unmasked")
        on_device = x.device.type == "cuda"
        layout = Layout(shape, self.calls.pair(shape), size, False, on_device)
        rows = Rows(shape, layout, x.device, len(x))

        def place(own: Rows) -> None:
            self._place(own, rows)
            if after:
                after(rows)

        rows.alone, event, hook = self.calls.dispatch(shape, x, self._own(ids, shape.per_rank), weights=weights,
                                                      after=place, **how)
        return rows, event, hook

    @plain
    def _place(self, own: Rows, rows: Rows) -> None:
        n = rows.shape.tokens
        rows.clear()
        rows.packed_x[:, :n].copy_(own.packed_x)
        if own.packed_scales is not None:
            rows.packed_scales[:, :, :n].copy_(own.packed_scales)
        rows.src_info[:, :n].copy_(own.src_info)
        rows.count.copy_(own.count)
        rows.range[:, self.rank].copy_(own.range[:, 0])

    @plain
    def combine(self, rows: Rows, y: torch.Tensor, ids: torch.Tensor, out: torch.Tensor,
                weights: Optional[torch.Tensor], after: Optional[Callable], how: dict) -> tuple:
        own: Any = rows.alone
        return self.calls.combine(own, y[:, :rows.shape.tokens].contiguous(), self._own(ids, rows.shape.per_rank), out,
                                  weights=weights, after=after, **how)

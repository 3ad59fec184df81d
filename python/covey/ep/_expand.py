# SPDX-License-Identifier: Apache-2.0
"""The expanded layout of DeepEP's second buffer: a row for each expert of a token, expert by expert.

Rows come as in COMPACT, one for each token, and are copied here to the places of their experts. Each expert begins at a
multiple of the alignment; within an expert rows are by source, then by token. No shape depends on what came, unless the
host looks.
"""

from typing import Any, Optional

import torch

from .._plain import plain

_SCALES_ALIGNED = 4  # floats of 16 bytes


class Places:
    """Where each entry of the ids goes.

    Attributes:
        slots: [n, K] int32: the expanded row of each entry, -1 where it has none
        counts: [El] int32: rows of each expert
        ends: [El] int32: where these end
        rows: expanded rows, with those that fill up to the alignment
        per_expert: of each expert, rounded up; without a look, empty
    """

    @plain
    def __init__(self, ids: torch.Tensor, experts: int, alignment: int, looks: bool):
        """@ids: [n, K] local ids, -1 for others. @looks: the host waits for the number of rows."""
        n, self.top_k = ids.shape
        device = ids.device
        flat = torch.where(ids >= 0, ids, experts).reshape(-1).long()
        order = torch.argsort(flat, stable=True)
        counts = torch.zeros(experts + 1, dtype=torch.int64, device=device)
        counts.index_add_(0, flat, torch.ones((), dtype=torch.int64, device=device).expand(len(flat)))
        rounded = (counts[:experts] + alignment - 1) // alignment * alignment
        begins = rounded.cumsum(0) - rounded
        shift = torch.zeros(experts + 1, dtype=torch.int64, device=device)
        shift[:experts] = begins - (counts.cumsum(0) - counts)[:experts]
        by_expert = flat[order]
        to = torch.arange(len(flat), dtype=torch.int64, device=device) + shift[by_expert]
        there = by_expert < experts
        self.per_expert = rounded.tolist() if looks else []
        most = -(-(n * min(self.top_k, experts) + (alignment - 1) * experts) // alignment) * alignment
        self.rows = sum(self.per_expert) if looks else most
        slots = torch.empty(len(flat), dtype=torch.int64, device=device)
        slots[order] = torch.where(there, to, -1)
        self.slots = slots.view(n, self.top_k).int()
        self.counts = counts[:experts].int()
        self.ends = (begins + counts[:experts]).int()
        entry = torch.full((self.rows + 1,), -1, dtype=torch.int64, device=device)  # the last one is for what has no row
        entry[torch.where(there, to, self.rows)] = order
        self._entry = entry[: self.rows].clamp(min=0)
        self._none = entry[: self.rows] < 0

    def tensors(self) -> tuple:
        return self.slots, self.counts, self.ends, self._entry, self._none

    @plain
    def spread(self, rows: torch.Tensor, zeros: bool) -> torch.Tensor:
        """@rows [n, ...] as expanded rows. @zeros: rows that fill up are zeros, else they have anything."""
        out = rows.view(torch.uint8).index_select(0, self._entry // self.top_k)
        if zeros:
            out.masked_fill_(self._none[:, None], 0)
        return out.view(rows.dtype)

    @plain
    def weights(self, weights: torch.Tensor) -> torch.Tensor:
        """@weights [n, K] as those of expanded rows; rows that fill up have 0."""
        return weights.reshape(-1)[self._entry].masked_fill_(self._none, 0)

    @plain
    def sum(self, x: torch.Tensor) -> torch.Tensor:
        """[n, H]: the sum of each token's expanded rows, in float32, k ascending, rounded once."""
        out = torch.zeros((len(self.slots), x.shape[1]), dtype=torch.float32, device=x.device)
        for k in range(self.top_k):
            slot = self.slots[:, k]
            out += x.index_select(0, slot.clamp(min=0)).float().masked_fill_((slot < 0)[:, None], 0)
        return out.to(x.dtype)

    @plain
    def gather(self, weights: torch.Tensor) -> torch.Tensor:
        """[n, K] of the weights of expanded rows."""
        return weights[self.slots.clamp(min=0).long()].masked_fill_(self.slots < 0, 0)


@plain
def by_column(scales: torch.Tensor) -> torch.Tensor:
    """@scales with the rows of a group beside each other, groups 16-byte aligned."""
    n, groups = scales.shape
    out = torch.empty_strided((n, groups), (1, max(-(-n // _SCALES_ALIGNED) * _SCALES_ALIGNED, 1)), dtype=scales.dtype,
                              device=scales.device)
    return out.copy_(scales)


@plain
def sources_of(rows: Any, ids: torch.Tensor, places: Optional[Places], most: int) -> torch.Tensor:
    """[n, 2 + K] int32 of each row: its source * @most + its token; source * K + its first k here; expanded rows."""
    n, top_k = ids.shape
    source = torch.bucketize(torch.arange(n, dtype=torch.int32, device=ids.device), rows.sums_by_rank, right=True,
                             out_int32=True).clamp(max=len(rows.sums_by_rank) - 1)
    out = torch.full((n, 2 + top_k), -1, dtype=torch.int32, device=ids.device)
    out[:, 0] = source * most + rows.src_info[:n]
    out[:, 1] = source * top_k + (ids >= 0).int().argmax(1)
    if places:
        out[:, 2:] = places.slots
    return out


@plain
def slots_at_owners(ids: torch.Tensor, per_rank: int) -> torch.Tensor:
    """[n, K] int32: the token's place among those that go to the same rank; -1: no expert, or an earlier k has the rank."""
    owners = torch.where(ids >= 0, ids // per_rank, -1).long()
    earlier = owners[:, :, None] == owners[:, None, :]  # [n, k, j]
    first = (owners >= 0) & ~earlier.tril(-1).any(2)
    size = int(owners.max()) + 1 if owners.numel() else 0
    there = torch.zeros((len(ids), size + 1), dtype=torch.int64, device=ids.device)
    there.scatter_(1, torch.where(first, owners, size), 1)
    return torch.where(first, (there.cumsum(0) - 1).gather(1, owners.clamp(min=0)), -1).int()

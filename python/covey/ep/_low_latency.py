# SPDX-License-Identifier: Apache-2.0
"""The low-latency calls that NIXL EP, DeepEP and Mooncake EP have in common, on one buffer of covey."""

from typing import Any, Callable, Optional, Tuple

import torch

from .._plain import empty, own, plain
from . import _handle
from ._calls import GROUP, Calls, Rows, kind_of, matrix, number, of_torch
from ._members import E4M3, POW2, Shape

_SLOTS, _TOP_K = 4, 8
_MOST_TOKENS = 1048576  # of a handle
_IDS = (torch.int32, torch.int64)


def size_hint(max_tokens: int, hidden: int, num_ranks: int) -> int:
    """Addresses of a window with room for handles in bf16, in fp8, and with round_scale, of tokens with up to 8 experts."""
    row = 2 * hidden + 1024
    return 3 * _SLOTS * (max_tokens * row + num_ranks * max_tokens * _TOP_K * row)


class Handle(_handle.Handle):
    """(src_info, layout_range, ...). layout_range has an entry for each source: (first row << 32) | count."""

    def __init__(self, rows: Rows, *rest: Any):
        self.rows, self._rest = rows, rest
        self.next_y: Optional[torch.Tensor] = None  # for a combine with zero_copy

    def _make(self) -> tuple:
        packed = self.rows.range  # count above first row
        return (self.rows.src_info, (packed & 0xffffffff) << 32 | packed >> 32, *self._rest)

    def __len__(self) -> int:
        return 2 + len(self._rest)

    def buffer(self) -> torch.Tensor:
        """A place for the experts' results, which a combine with zero_copy reads."""
        if self.next_y is None:
            self.next_y = empty(self.rows.packed_x.shape, dtype=self.rows.dtype, device=self.rows.packed_x.device)
        return self.next_y


def waits_of(stats: Optional[torch.Tensor], size: int, name: str) -> Optional[torch.Tensor]:
    """Where the waits for each source are added: int64, an entry for each rank at least."""
    if stats is not None and (of_torch(stats, name).dtype != torch.int64 or stats.numel() < size or not stats.is_contiguous()):
        raise ValueError(f"{name} is {stats.dtype} {tuple(stats.shape)}: it must be a contiguous int64 tensor with an "
                         f"entry for each of the {size} ranks")
    return stats


class Packed:
    """Scales as four exponents in an int32 (use_ue8m0): scale = 2^(exponent - 127)."""

    def __init__(self, shape: Shape, size: int, device: torch.device):
        groups = shape.hidden // GROUP
        self.bytes = empty((shape.per_rank, groups // 4, size * shape.tokens, 4), dtype=torch.uint8, device=device)

    @plain
    def fill(self, scales: torch.Tensor) -> None:
        """@scales: [El, H / 128, R * T], powers of two."""
        if scales.is_cuda:
            self.bytes.record_stream(torch.cuda.current_stream(scales.device))
        el, fours, n, _ = self.bytes.shape
        self.bytes.copy_((scales.view(torch.int32) >> 23).view(el, fours, 4, n).transpose(2, 3))

    @property
    def scales(self) -> torch.Tensor:
        """[El, R * T, H / 512], by column."""
        return self.bytes.view(torch.int32).squeeze(3).transpose(1, 2)


@own
def dispatch(calls: Calls, x: torch.Tensor, ids: torch.Tensor, max_tokens: int, per_rank: int, *, use_fp8: bool,
             stats: Optional[torch.Tensor], waits: Optional[torch.Tensor], hook: bool, event: bool,
             round_scale: bool = False, use_ue8m0: bool = False, after: Optional[Callable] = None, **more: Any):
    """Returns (recv_x, count, rows, event, hook) in DeepEP's layout.

    Args:
        after: after() runs, or launches, when the rows are here
        more: as of Calls.dispatch()
    """
    matrix(x, "x", None, None, torch.bfloat16, torch.float16)
    number(max_tokens, "num_max_dispatch_tokens_per_rank", 1, _MOST_TOKENS)
    matrix(ids, "topk_idx", x.shape[0], None, *_IDS)
    calls.enter()
    name = "cumulative_local_expert_recv_stats"
    if stats is not None and (of_torch(stats, name).dtype != torch.int32 or stats.numel() != per_rank
                              or stats.device != x.device):
        raise ValueError(f"{name} is {stats.dtype} {tuple(stats.shape)} on {stats.device}: it must be int32 on {x.device} "
                         f"with {per_rank} elements, the experts of a rank")

    def here(rows: Rows) -> None:
        if stats is not None:
            plain(stats.view(-1).add_)(rows.count)
        if packed:
            packed.fill(rows.packed_scales)
        if after:
            after()

    shape = Shape(max_tokens, x.shape[1], ids.shape[1], per_rank,
                  kind_of(x, use_fp8) | (POW2 if use_fp8 and round_scale else 0))
    packed = None
    if use_fp8 and use_ue8m0:
        if not round_scale or x.shape[1] % (4 * GROUP):
            raise ValueError(f"use_ue8m0 is True, with round_scale={round_scale} and {x.shape[1]} elements of a token: it "
                             f"needs round_scale=True, and a multiple of {4 * GROUP} elements")
        packed = Packed(shape, max(calls.size, calls.rank + 1), x.device)
    waits = waits_of(waits, calls.size, "dispatch_wait_recv_cost_stats")
    rows, event, hook = calls.dispatch(shape, x, ids, waited=waits,
                                       after=here if stats is not None or packed or after else None, hook=hook,
                                       event=event, **more)
    recv_x: Any = rows.packed_x
    if shape.kind & E4M3:
        recv_x = rows.packed_x, packed.scales if packed else rows.packed_scales.transpose(1, 2)
    return recv_x, rows.count, rows, event, hook


def handle_of(handle: Any) -> Handle:
    """@handle, if it is one of low latency."""
    return _handle.handle_of(handle, Handle)


@own
def combine(calls: Calls, handle: Handle, x: torch.Tensor, ids: torch.Tensor, weights: torch.Tensor, *, zero_copy: bool,
            out: Optional[torch.Tensor], waits: Optional[torch.Tensor], hook: bool, event: bool, **more: Any) -> Tuple:
    """Returns (combined, event, hook). @more: as of Calls.combine()."""
    handle = handle_of(handle)
    rows = handle.rows
    n, k = rows.num_tokens, rows.shape.top_k
    matrix(ids, "topk_idx", n, k, *_IDS)
    matrix(weights, "topk_weights", n, k, torch.float32)
    if zero_copy:
        x = handle.buffer()
    if of_torch(x, "x").shape != rows.packed_x.shape or x.dtype != rows.dtype or not x.is_contiguous():
        raise ValueError(f"x is {x.dtype} {tuple(x.shape)}: it must be contiguous, {rows.dtype} and "
                         f"{tuple(rows.packed_x.shape)}, as what the dispatch gave")
    if out is None:
        out = torch.empty((n, rows.shape.hidden), dtype=rows.dtype, device=x.device)
    else:
        matrix(out, "out", n, rows.shape.hidden, rows.dtype)
    event, hook = calls.combine(rows, x, ids, out, weights=weights, hook=hook, event=event,
                                waited=waits_of(waits, calls.size, "combine_wait_recv_cost_stats"), **more)
    return out, event, hook

# SPDX-License-Identifier: Apache-2.0
"""Normal mode: a row for each rank that a token goes to, whatever the number of its experts there (COMPACT)."""

from typing import Any, List, Optional, Tuple, Union

import torch

from .._plain import plain
from ._calls import Calls, Rows, kind_of, matrix, of_torch
from ._event import EventHandle
from ._expand import Places
from ._handle import Handle
from ._members import COMPACT, Shape

_IDS = (torch.int32, torch.int64)
_LEAST_TOKENS = 64  # of a handle: sizes are powers of two from here on
_MOST_IDS = 32  # of a token
_PARTS = 3  # bfloat16 numbers whose sum is a float32


class Routing(Handle):
    """What a dispatch gives its combine, and a later dispatch of the same tokens.

    Its parts are those of DeepEP's handle: rank_prefix_matrix [R, R], of which this rank's column counts, and the others
    are -1; None for two of channels; the token on its source of each row; is_token_in_rank [n, R]; None.

    Attributes:
        rows: what came; a later dispatch of the same tokens writes it anew
        topk_idx, weights: of the tokens that were dispatched
        received: rows here; without a look at them, the most that there can be
        per_expert: of each local expert, rounded up; without a look, empty
        told: [R, E] of a dispatch without ids of experts: the tokens of each source for each expert
        places: where rows are expanded to, or None
    """

    def __init__(self, topk_idx: torch.Tensor, weights: torch.Tensor, shape: Shape, alignment: int, most: int,
                 rank: int):
        self.rank, self.topk_idx, self.weights, self.shape, self.alignment, self.most = \
            rank, topk_idx, weights, shape, alignment, most
        self.rows: Any = None
        self.received, self.per_expert = 0, []  # type: Tuple[int, List[int]]
        self.told: Optional[torch.Tensor] = None
        self.places: Optional[Places] = None

    def _make(self) -> tuple:
        count = self.rows.range >> 32
        size = len(count)
        prefix = torch.full((size, size), -1, dtype=torch.int32, device=count.device)
        prefix[:, self.rank] = count.cumsum(0)
        there = layout(self.topk_idx, size * self.shape.per_rank, size)[2]
        return prefix, None, None, self.rows.src_info[:self.received], there, None


def layout(topk_idx: torch.Tensor, num_experts: int, size: int):
    """Returns (tokens for each rank [R], tokens for each expert [E], is the token for the rank [n, R])."""
    matrix(topk_idx, "topk_idx", None, None, *_IDS)
    per_rank = experts_of_a_rank(num_experts, size)
    valid = (topk_idx >= 0) & (topk_idx < num_experts)
    ids = torch.where(valid, topk_idx, num_experts).long()
    one = torch.ones((), dtype=torch.int32, device=ids.device)
    for_expert = torch.zeros(num_experts + 1, dtype=torch.int32, device=ids.device)
    for_expert.index_add_(0, ids.reshape(-1), one.expand(ids.numel()))
    there = torch.zeros((len(ids), size + 1), dtype=torch.bool, device=ids.device)
    there.scatter_(1, torch.where(valid, ids // per_rank, size), True)
    there = there[:, :size].contiguous()
    return there.sum(0, dtype=torch.int32), for_expert[:num_experts].contiguous(), there


def experts_of_a_rank(num_experts: int, size: int) -> int:
    if num_experts < size or num_experts % size:
        raise ValueError(f"num_experts is {num_experts}: it must be a multiple of {size}, the number of ranks")
    return num_experts // size


@plain
def agreed(calls: Calls, n: int, per_expert: Optional[torch.Tensor] = None) -> Tuple[int, torch.Tensor]:
    """The most tokens that any rank has in this call, as the size of a handle, and @per_expert of each rank: [R, E].

    The host waits for all ranks.
    """
    calls.enter()
    calls.finish()
    own = [n] if per_expert is None else [n, *per_expert.tolist()]
    told = torch.zeros((calls.size, len(own)), dtype=torch.int64, device="cpu")
    calls.live.allgather(torch.tensor(own, dtype=torch.int64, device="cpu"), told)
    most = max(int(told[:, 0].max()), 1)
    return max(_LEAST_TOKENS, 1 << (most - 1).bit_length()), told[:, 1:]


@plain
def ids_of_ranks(there: torch.Tensor) -> torch.Tensor:
    """[n, K] of is_token_in_rank [n, R]: the ranks of each token, then -1. K is R, or the most that a call takes."""
    matrix(there, "is_token_in_rank", None, None, torch.bool)
    size = there.shape[1]
    ids = torch.where(there, torch.arange(size, dtype=torch.int64, device=there.device), -1)
    if size > _MOST_IDS:
        ids = ids.sort(1, descending=True)[0]
        if bool((ids[:, _MOST_IDS] >= 0).any()):
            raise ValueError(f"a token goes to more than {_MOST_IDS} ranks: without topk_idx a call takes no more")
        ids = ids[:, :_MOST_IDS].contiguous()
    return ids


def route(x: Any, topk_idx: torch.Tensor, topk_weights: Optional[torch.Tensor], tokens: int, per_rank: int,
          alignment: int, most: int, lanes: int, rank: int) -> Routing:
    """@most: rows here at most. @lanes: as of Shape. Ids and weights are checked. @rank: the own one."""
    codes = x[0] if isinstance(x, tuple) else x
    matrix(codes, "x", None, None)
    matrix(topk_idx, "topk_idx", len(codes), None, *_IDS)
    if topk_weights is None:
        topk_weights = torch.zeros(topk_idx.shape, dtype=torch.float32, device=topk_idx.device)
    matrix(topk_weights, "topk_weights", len(codes), topk_idx.shape[1], torch.float32)
    shape = Shape(tokens, codes.shape[1], topk_idx.shape[1], per_rank, kind_of(codes, isinstance(x, tuple), True), lanes)
    return Routing(topk_idx, topk_weights, shape, alignment, most, rank)


def dispatch(calls: Calls, routing: Routing, x: Union[torch.Tensor, Tuple[torch.Tensor, torch.Tensor]], looks: bool,
             stats: Optional[torch.Tensor] = None, sums: bool = False, event: bool = False,
             previous: Any = None) -> Optional[EventHandle]:
    """Sends the tokens of @routing, and keeps there what came.

    Args:
        x: [n, H] bfloat16 or float16; or codes in float8_e4m3fn and their scales [n, H / 128]
        looks: the host waits and looks how many rows there are
        stats: [El] int32: the rows of each expert are added
        sums: rows.sums and rows.sums_by_rank are wanted: inclusive sums of the rows of each expert, of each source
    """
    codes, scales = x if isinstance(x, tuple) else (x, None)
    if scales is not None:  # of any layout, as there
        scales = of_torch(scales, "the scales of x").contiguous()
    matrix(codes, "x", len(routing.topk_idx), routing.shape.hidden)
    kind = kind_of(codes, scales is not None, True)
    if scales is not None:
        matrix(codes, "x", None, None, torch.float8_e4m3fn)
        matrix(scales, "the scales of x", len(codes), -(-codes.shape[1] // 128), torch.float32)

    @plain
    def after(rows: Rows) -> None:
        rows.ids = rows.recv_experts.to(routing.topk_idx.dtype)
        if sums:
            rows.sums = rows.expert_tokens.cumsum(0, dtype=torch.int32)
            rows.sums_by_rank = (rows.range >> 32).cumsum(0, dtype=torch.int32)
        if stats is not None:
            stats.view(-1).add_(rows.count)

    rows, event_handle, _ = calls.dispatch(
        routing.shape._replace(kind=kind), codes, routing.topk_idx, weights=routing.weights, x_scales=scales,
        fill_tail=True, alignment=routing.alignment, tokens=True, after=after, event=event, previous=previous)
    routing.rows = rows
    if event:
        calls.keep(stats)
    if not looks:
        routing.received, routing.per_expert = routing.most, []
        return event_handle
    if event_handle is not None:
        event_handle.synchronize()
    last = int(rows.range[-1])
    routing.received = (last >> 32) + (last & 0xffffffff)
    routing.per_expert = rows.expert_tokens.tolist() if routing.told is None else _told(routing)
    return event_handle


@plain
def _told(routing: Routing) -> List[int]:
    """Of each local expert what sources have told whose rows are here, rounded up."""
    told: Any = routing.told
    here = (routing.rows.range >> 32).cpu() > 0
    mine = told.view(len(told), len(here), -1)[here, routing.rank].sum(0)
    return (-(-mine // routing.alignment) * routing.alignment).tolist()


def received(routing: Routing) -> Any:
    """The rows, with their scales if they are codes."""
    rows, n = routing.rows, routing.received
    return rows.packed_x[:n] if rows.packed_scales is None else (rows.packed_x[:n], rows.packed_scales[:n])


def combine(calls: Calls, routing: Routing, y: torch.Tensor, topk_weights: Optional[torch.Tensor], bias: Any,
            event: bool = False, previous: Any = None):
    """Sums what the ranks made of each token. Returns (out, weights or None, event)."""
    if routing.places:
        y, topk_weights = _folded(routing, y, topk_weights)
    elif topk_weights is not None and routing.told is not None:
        raise ValueError("topk_weights is given: the dispatch had no topk_idx, so it is not known whose weights these are")
    rows, ids = routing.rows, routing.topk_idx
    matrix(y, "x", None, routing.shape.hidden, rows.dtype)
    if len(y) < routing.received:
        raise ValueError(f"x has {len(y)} rows: the dispatch gave {routing.received}")
    out = torch.empty((len(ids), routing.shape.hidden), dtype=rows.dtype, device=y.device)
    addends = [b for b in (bias if isinstance(bias, (tuple, list)) else (bias,)) if b is not None]
    for addend in addends:
        matrix(addend, "bias", len(ids), routing.shape.hidden, rows.dtype)

    @plain
    def added(to: Any) -> Any:
        return sum((b.float() for b in addends), to)

    where = {}
    if addends:  # devices have rounded the sum before anything can be added
        where = {"after": lambda: plain(out.copy_)(added(out.float()))} if y.is_cuda else {"bias": added(0)}

    back = None
    if topk_weights is not None:
        back = _combine_weights(calls, routing, topk_weights, event, previous)
    event_handle, _ = calls.combine(rows, y, ids, out, event=event, previous=previous, **where)
    if event:
        calls.keep(*addends)
    return out, back, event_handle


def _folded(routing: Routing, y: torch.Tensor, topk_weights: Optional[torch.Tensor]) -> tuple:
    """Expanded rows, and their weights, as rows of tokens."""
    places: Any = routing.places
    matrix(y, "x", None, routing.shape.hidden, routing.rows.dtype)
    if len(y) < places.rows:
        raise ValueError(f"x has {len(y)} rows: the dispatch gave {places.rows}")
    if topk_weights is not None:
        if of_torch(topk_weights, "topk_weights").shape != (places.rows,) or topk_weights.dtype is not torch.float32:
            raise ValueError(f"topk_weights is {topk_weights.dtype} {tuple(topk_weights.shape)}: with do_expand it must be "
                             f"float32 [{places.rows}]")
        topk_weights = places.gather(topk_weights)
    return places.sum(y), topk_weights


def _combine_weights(calls: Calls, routing: Routing, topk_weights: torch.Tensor, event: bool, previous: Any):
    """Weights go back as three numbers of bfloat16 each, in rows of their own. Exact where one rank has each weight."""
    rows, ids, top_k = routing.rows, routing.topk_idx, routing.shape.top_k
    matrix(topk_weights, "topk_weights", None, top_k, torch.float32)
    if len(topk_weights) < routing.received:
        raise ValueError(f"topk_weights has {len(topk_weights)} rows: the dispatch gave {routing.received}")
    width = -(-_PARTS * top_k // 8) * 8
    shape = routing.shape._replace(hidden=width, kind=COMPACT)
    y = torch.zeros((len(topk_weights), width), dtype=torch.bfloat16, device=topk_weights.device)
    rest = topk_weights
    for part in range(_PARTS):
        y[:, part * top_k: (part + 1) * top_k] = rest
        rest = (rest - rest.to(torch.bfloat16).float()).nan_to_num(0, 0, 0)
    out = torch.empty((len(ids), width), dtype=torch.bfloat16, device=y.device)
    back = torch.empty((len(ids), top_k), dtype=torch.float32, device=y.device)

    def add() -> None:
        back.copy_(out[:, : _PARTS * top_k].float().view(len(ids), _PARTS, top_k).sum(1))

    if y.is_cuda:  # there a route belongs to its handle
        x = torch.zeros((len(ids), width), dtype=torch.bfloat16, device=y.device)
        rows, _, _ = calls.dispatch(shape, x, ids, weights=routing.weights, event=event, previous=previous)
    calls.combine(rows, y, ids, out, shape=shape, after=add, event=event, previous=previous)
    if event:
        calls.keep(back)
    return back

# SPDX-License-Identifier: Apache-2.0
"""The calls of normal mode, which DeepEP's buffers and NIXL EP's (ht_dispatch, ht_combine) have in common."""

from typing import Any, Optional, Tuple

import torch

from . import _normal
from ._calls import Calls
from ._event import EventHandle, EventOverlap
from ._handle import handle_of
from ._normal import Routing


def event_of(previous: Any) -> Optional[EventHandle]:
    return getattr(previous, "event", previous)


class NormalMode:
    """A buffer with normal mode."""

    rank: int
    calls: Calls

    def _normal_size(self) -> int:
        """Of the group, with normal mode."""
        raise NotImplementedError

    def _per_rank(self, num_experts: int) -> int:
        return _normal.experts_of_a_rank(num_experts, self._normal_size())

    def get_dispatch_layout(self, topk_idx: torch.Tensor, num_experts: int, previous_event: Any = None,
                            async_finish: bool = False, allocate_on_comm_stream: bool = False) -> Tuple:
        """What goes where, of this rank's tokens.

        Returns:
            tokens for each rank [R] int32, None, tokens for each expert [E] int32, is the token for the rank [n, R],
            EventOverlap
        """
        event = event_of(previous_event)
        if event is not None:
            event.current_stream_wait()
        self._per_rank(num_experts)
        per_rank, per_expert, there = _normal.layout(topk_idx, num_experts, self._normal_size())
        return per_rank, None, per_expert, there, EventOverlap(EventHandle() if async_finish else None)

    def _dispatch(self, x: Any, handle: Any, is_token_in_rank: Optional[torch.Tensor],
                  num_tokens_per_expert: Optional[torch.Tensor], topk_idx: Optional[torch.Tensor],
                  topk_weights: Optional[torch.Tensor], alignment: int, worst: int, sms: int, previous_event: Any,
                  event: bool) -> Tuple:
        """As Buffer.dispatch() of covey.ep.deep_ep. @worst: num_worst_tokens. @sms: as lanes of Shape."""
        previous = event_of(previous_event)
        if handle is not None:
            if topk_idx is not None or topk_weights is not None:
                raise ValueError("handle and topk_idx or topk_weights are given: the handle has them")
            handle = handle_of(handle, Routing)
            with self.calls.beside(x, event, previous) as give:
                done = _normal.dispatch(self.calls, handle, x, not handle.most, event=event, previous=previous)
                give(*handle.rows.rooms)
            return _normal.received(handle), None, None, None, None, EventOverlap(done)
        if num_tokens_per_expert is None or topk_idx is None and (is_token_in_rank is None or worst):
            raise ValueError("num_tokens_per_expert, or topk_idx, is None: a dispatch without a handle needs both; without "
                             "topk_idx it needs is_token_in_rank, and no num_worst_tokens")
        per_rank, told = self._per_rank(len(num_tokens_per_expert)), None
        with self.calls.beside(x, event, previous) as give:
            if topk_idx is None:  # each rank stands for one expert
                tokens, told = _normal.agreed(self.calls, len(is_token_in_rank), num_tokens_per_expert)
                per_rank, topk_idx, topk_weights = 1, _normal.ids_of_ranks(is_token_in_rank), None
            elif worst:
                tokens = -(-worst // self._normal_size())
            else:
                tokens, _ = _normal.agreed(self.calls, len(topk_idx))
            routing = _normal.route(x, topk_idx, topk_weights, tokens, per_rank, alignment, worst, sms, self.rank)
            routing.told = told
            done = _normal.dispatch(self.calls, routing, x, not worst, event=event, previous=previous)
            give(*routing.rows.rooms, routing.rows.ids, routing.weights, topk_idx)
        rows, n = routing.rows, routing.received
        return (_normal.received(routing), None if told is not None else rows.ids[:n],
                None if topk_weights is None else rows.recv_weights[:n], routing.per_expert, routing, EventOverlap(done))


def combine(calls: Calls, handle: Any, x: torch.Tensor, topk_weights: Any, bias: Any, previous_event: Any,
            event: bool) -> Tuple:
    """As Buffer.combine() of covey.ep.deep_ep."""
    previous, routing = event_of(previous_event), handle_of(handle, Routing)
    with calls.beside(x, event, previous) as give:
        out, weights, done = _normal.combine(calls, routing, x, topk_weights, bias, event, previous)
        give(out, weights)
    return out, weights, EventOverlap(done)

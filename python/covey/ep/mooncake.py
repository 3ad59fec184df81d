# SPDX-License-Identifier: Apache-2.0
"""Mooncake EP's buffer, with its mask of active ranks (1 = active) that callers own.

    from covey.ep.mooncake import Buffer

    buffer = Buffer(group, Buffer.get_ep_buffer_size_hint(128, hidden, group.size(), experts))
    recv_x, count, handle, event, hook = buffer.dispatch(x, topk_idx, active_ranks, 128, experts, timeout_us)

The process group may be that of covey.compat.mooncake. When it has recovered ranks, all call update_ep_member().
"""

from typing import Any, List, Optional, Tuple

import torch

from . import _low_latency
from ._event import EventHandle, EventOverlap, refuse
from ._low_latency import Handle
from ._normal import experts_of_a_rank
from .buffer import Buffer as _ByRanks
from .deep_ep import _Life, _meet

_LONGEST_MS = 3_600_000  # of a call without a deadline: all ranks of a call give one, or none does


class Buffer(_Life):
    """Mooncake EP's Buffer.

    Attributes:
        rank, group_size, group: of the process group
        calls: what is behind it; `calls.group` is the covey.Group
    """

    explicitly_destroy = True

    def __init__(self, group: Any, num_ep_buffer_bytes: int, disable_p2p: bool = False, **more: Any):
        """All ranks of @group call it; one that replaces another, before or after join_group(). disable_p2p: not read."""
        refuse("Buffer()", more)
        self.group, self.num_ep_buffer_bytes = group, num_ep_buffer_bytes
        self._calls = _meet(group, None, num_ep_buffer_bytes, 0)
        self.rank, self.group_size = self._calls.rank, group.size()
        self._members_change = False

    @classmethod
    def create_elastic(cls, disable_ll_nvlink: bool = False, explicitly_destroy: bool = False, rank: int = 0,
                       tcp_store_group: Any = None, timeout_ms: int = 30000,
                       metadata_timeout_ms: int = 300000) -> _ByRanks:
        """A buffer that connects ranks without a process group: covey.ep.Buffer."""
        made = _ByRanks(disable_ll_nvlink, explicitly_destroy, rank, tcp_store_group=tcp_store_group,
                        timeout_ms=timeout_ms)
        made.patience_s = metadata_timeout_ms / 1000
        return made

    @staticmethod
    def get_ep_buffer_size_hint(num_max_dispatch_tokens_per_rank: int, hidden: int, num_ranks: int,
                                num_experts: int) -> int:
        """Addresses that handles of this shape take in host memory, which are touched as they are used."""
        return _low_latency.size_hint(num_max_dispatch_tokens_per_rank, hidden, num_ranks)

    @staticmethod
    def capture() -> EventOverlap:
        """An event of the current stream."""
        return EventOverlap(EventHandle())

    # ---- members ----

    def connect(self, is_update: bool = False) -> None:
        """As update_ep_member(): the first connection is the buffer's own."""
        if is_update:
            self.update_ep_member()

    def update_ep_member(self) -> None:
        """Ranks that came into the process group come in with the next dispatch, which is a safe point on all ranks."""
        self.group_size = self.group.size()
        self._members_change = True

    def _enter_members(self) -> None:
        change, self._members_change = self._members_change, False
        if change:  # active_ranks() has those that came in at the last safe point, also before the next view is known
            active = getattr(self.group, "active_ranks", None)
            self.calls.admit(active().nonzero().view(-1).tolist() if active is not None else ())

    def _active(self, active_ranks: Optional[torch.Tensor], device: torch.device) -> torch.Tensor:
        """The caller's mask for the ranks of the group: a view of it, so that zeros are written there."""
        size = self.calls.size
        if active_ranks is None:
            return self.calls.active(device)
        if active_ranks.dtype != torch.int32 or active_ranks.dim() != 1 or len(active_ranks) < size \
                or not active_ranks.is_contiguous() or active_ranks.device != device:
            raise ValueError(f"active_ranks is {active_ranks.dtype} {tuple(active_ranks.shape)} on {active_ranks.device}: "
                             f"it must be contiguous int32 on {device}, with an entry for each of the {size} ranks")
        return active_ranks[:size]

    # ---- dispatch and combine ----

    def dispatch(self, x: torch.Tensor, topk_idx: torch.Tensor, active_ranks: Optional[torch.Tensor],
                 num_max_dispatch_tokens_per_rank: int, num_experts: int, timeout_us: int,
                 use_fp8: Optional[bool] = None, async_finish: bool = False, return_recv_hook: bool = False,
                 topk_weights: Optional[torch.Tensor] = None, **more: Any) -> Tuple:
        """As covey.ep.Buffer.dispatch().

        Args:
            active_ranks: [R or more] int32: a rank with 0 is neither waited for nor sent to. A rank that is lost or
                late gets 0 there
            timeout_us: a rank that is waited for in vain for so long is late, and is removed; below 0: never
            topk_weights: not read: the combine has them
        """
        refuse("dispatch()", more)
        self._enter_members()
        self.calls.enter()
        active = self._active(active_ranks, x.device)
        recv_x, count, rows, event, hook = _low_latency.dispatch(
            self.calls, x, topk_idx, num_max_dispatch_tokens_per_rank,
            experts_of_a_rank(num_experts, self.group_size), use_fp8=use_fp8 is not False, stats=None, waits=None,
            hook=return_recv_hook, event=async_finish, active=active, timeout_ms=_milliseconds(timeout_us),
            after=lambda: self.calls.write_active(active))
        handle = Handle(rows, num_max_dispatch_tokens_per_rank, x.shape[1], num_experts)
        return recv_x, count, handle, EventOverlap(event, (x, topk_idx)), hook

    def combine(self, x: torch.Tensor, topk_idx: torch.Tensor, topk_weights: torch.Tensor,
                active_ranks: Optional[torch.Tensor], timeout_us: int, handle: Handle, zero_copy: bool = False,
                async_finish: bool = False, return_recv_hook: bool = False, out: Optional[torch.Tensor] = None,
                **more: Any) -> Tuple:
        """As covey.ep.Buffer.combine(); active_ranks and timeout_us as of dispatch()."""
        refuse("combine()", more)
        active = self._active(active_ranks, topk_idx.device)
        out, event, hook = _low_latency.combine(
            self.calls, handle, x, topk_idx, topk_weights, zero_copy=zero_copy, out=out, waits=None,
            hook=return_recv_hook, event=async_finish, active=active, timeout_ms=_milliseconds(timeout_us),
            after=lambda: self.calls.write_active(active))
        return out, EventOverlap(event, (x, topk_idx, topk_weights)), hook

    def get_next_combine_buffer(self, handle: Handle) -> torch.Tensor:
        """A place for the experts' results, for a combine with zero_copy."""
        return _low_latency.handle_of(handle).buffer()


def _milliseconds(timeout_us: int) -> int:
    return _LONGEST_MS if timeout_us < 0 else min(max(-(-timeout_us // 1000), 1), _LONGEST_MS)


__all__: List[str] = ["Buffer", "EventOverlap"]

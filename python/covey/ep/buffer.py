# SPDX-License-Identifier: Apache-2.0
"""Expert-parallel buffers in the shape of NIXL EP, which the elastic paths of vLLM and SGLang import.

    from covey.ep import Buffer

    buffer = Buffer(rank=rank, tcp_store_group=store)
    buffer.update_memory_buffers(num_ranks=8, num_experts_per_rank=32, num_rdma_bytes=0)
    buffer.connect_ranks(range(4))
    recv_x, count, handle, event, hook = buffer.dispatch(x, topk_idx, 128, 128, use_fp8=True)
    combined, event, hook = buffer.combine(y, topk_idx, topk_weights, handle)

Tensors may be on the host, too. A rank may die at any moment: the call ends without it, and from the next
call on all survivors see the same mask.
"""

from typing import Any, Iterable, Optional, Tuple

import torch

from . import _low_latency
from .._abi import COVEY_MAX_RANKS
from .._plain import zeros
from ._calls import Calls
from ._calls import number as whole
from ._event import EventHandle, EventOverlap, refuse
from ._low_latency import Handle
from ._meeting import by_environment, by_group, by_mpi, by_store, number, tell
from ._normal_mode import NormalMode, combine

DEFAULT_TIMEOUT_MS = 30_000
topk_idx_t = torch.int64
_SCRATCH_BYTES = 1 << 16
_MOST_EXPERTS = 1048576
_WHY_NOT = {
    "use_logfmt": "results come back in the type of the tokens",
}


class Config:
    """How many processors a call takes (num_sms). The other numbers are for kernels of other libraries, and not read."""

    def __init__(self, num_sms: int = 20, num_max_nvl_chunked_send_tokens: int = 6,
                 num_max_nvl_chunked_recv_tokens: int = 256, num_max_rdma_chunked_send_tokens: int = 6,
                 num_max_rdma_chunked_recv_tokens: int = 256):
        self.num_sms = self.num_sms_asked = num_sms  # of a default: 0

    def get_nvl_buffer_size_hint(self, hidden_bytes: int, num_ranks: int) -> int:
        """Addresses of a window with room for up to 8192 tokens of each rank in normal mode."""
        return 2 * 4 * 8192 * (hidden_bytes + 1024) * (num_ranks + 1)

    def get_rdma_buffer_size_hint(self, hidden_bytes: int, num_ranks: int) -> int:
        return 0


class Buffer(NormalMode):
    """NIXL EP's Buffer. It has low latency and normal mode (ht_dispatch), whatever low_latency_mode is.

    Attributes:
        rank: of this process
        group_size: the capacity, as given to update_memory_buffers()
        calls: what is behind it; `calls.group` is the covey.Group
        patience_s: for ranks that are awaited
    """

    num_sms: int = 20

    def __init__(self, disable_ll_nvlink: bool = False, explicitly_destroy: bool = False, rank: int = 0,
                 low_latency_mode: bool = True, group: Any = None, comm: Any = None, tcp_store_group: Any = None,
                 timeout_ms: int = DEFAULT_TIMEOUT_MS, **more: Any):
        """The ranks meet through @tcp_store_group, @group, @comm, or the environment (ep-run, COVEY_STORE).

        Args:
            disable_ll_nvlink: not read: covey chooses the way to each rank
            timeout_ms: a rank that a call waits for in vain for so long is removed; 0 or less: never
        """
        refuse("Buffer()", more)
        if group is not None and comm is not None:
            raise ValueError("group and comm are both given: one of them is enough")
        self.rank, self.group_size, self.low_latency_mode = rank, 0, low_latency_mode
        self.timeout_ms, self.explicitly_destroy = timeout_ms, explicitly_destroy
        self.group, self.comm, self.tcp_store_group = group, comm, tcp_store_group
        self.num_rdma_bytes = self.num_nvl_bytes = 0
        self.patience_s = 300.0
        self._number = number()
        self._meeting: Any = None
        self._calls: Optional[Calls] = None
        self._destroyed = False
        self._experts_per_rank = 0
        self._connected: set = {rank}
        self._staged: set = set()  # of them, those that wait to be unmasked
        self._scratch: Optional[torch.Tensor] = None

    # ---- life ----

    @property
    def calls(self) -> Calls:
        if self._calls is None:
            raise RuntimeError("the buffer is destroyed: make another one" if self._destroyed else
                               "the buffer has no memory yet: call update_memory_buffers() first")
        return self._calls

    @property
    def runtime(self) -> Optional[Calls]:
        """None after destroy(), as there."""
        return self._calls

    def update_memory_buffers(self, num_ranks: int, num_experts_per_rank: int, num_rdma_bytes: int,
                              num_nvl_bytes: int = 0) -> None:
        """Sets the capacity. @num_ranks is for the life of the buffer; @num_rdma_bytes as get_rdma_size_hint() says."""
        if self._destroyed:
            raise RuntimeError("the buffer is destroyed: make another one")
        whole(num_ranks, "num_ranks", 1, COVEY_MAX_RANKS)
        whole(num_experts_per_rank, "num_experts_per_rank", 1, _MOST_EXPERTS // num_ranks)
        whole(self.rank, "rank", 0, num_ranks - 1)
        if self._calls is not None and (num_ranks, num_experts_per_rank) != (self.group_size, self._experts_per_rank):
            raise ValueError(f"this buffer is for {self.group_size} ranks with {self._experts_per_rank} experts each: "
                             "destroy it and make another for a different capacity")
        self.group_size, self._experts_per_rank = num_ranks, num_experts_per_rank
        self.num_rdma_bytes, self.num_nvl_bytes = num_rdma_bytes, num_nvl_bytes
        if self._calls is None:
            self._calls = Calls(self.rank, num_ranks)

    def destroy(self) -> None:
        """Leaves the group."""
        if not self.explicitly_destroy:
            raise RuntimeError("make the buffer with explicitly_destroy=True to call destroy()")
        calls, self._calls, self._destroyed = self._calls, None, True
        if calls is not None:
            calls.close(leaves=True)

    def set_tcp_store_group(self, tcp_store_group: Any) -> None:
        self.tcp_store_group = tcp_store_group

    # ---- ranks ----

    def connect_ranks(self, remote_ranks: Iterable[int], activate: bool = True) -> None:
        """The first call forms the group of these ranks, or connects to those who did.

        Later calls say that further ranks are expected. With @activate they are awaited in a safe point, which all
        members call at the same place; without it they come in when one of them is unmasked.
        """
        calls = self.calls
        ranks = self._ranks(remote_ranks) | {self.rank}
        new = ranks - self._connected
        self._connected |= ranks
        if calls.group is None:
            self._meet(ranks)
            return
        if self._meeting.key and self.tcp_store_group is not None:
            tell(self._meeting, self.tcp_store_group, self.group_size)
        if new and activate:
            self.admit(new)
        elif new:
            self._staged |= new

    def _ranks(self, given: Iterable[int]) -> set:
        if not hasattr(given, "__iter__"):
            raise TypeError(f"remote_ranks is {given!r}: it must be a list of ranks")
        ranks = set(int(r) for r in given)
        bad = sorted(r for r in ranks if not 0 <= r < self.group_size)
        if bad:
            raise ValueError(f"ranks {bad} are beyond the capacity, {self.group_size}: update_memory_buffers() set it")
        return ranks

    def _meet(self, ranks: set) -> None:
        self._meeting = meeting = self._find(ranks)
        world = max(ranks) + 1
        if not meeting.joins and len(ranks) != world:
            raise ValueError(f"the first ranks are {sorted(ranks)}: they must be 0, 1, ... without gaps")
        self.calls.patience_s = self.patience_s
        self.calls.meet(meeting, world, self.timeout_ms, self.num_rdma_bytes + self.num_nvl_bytes)
        if meeting.key:
            tell(meeting, self.tcp_store_group, self.group_size)

    def _find(self, ranks: set) -> Any:
        if self.tcp_store_group is not None:
            return by_store(self.tcp_store_group, self.rank, ranks, self._number)
        if self.group is not None:
            return by_group(self.group, self._number)
        if self.comm is not None:
            return by_mpi(self.comm)
        return by_environment(self._number)

    def disconnect_ranks(self, remote_ranks: Iterable[int]) -> None:
        """These ranks take no part from here on. Members among them leave when what they have called is done."""
        group = self.calls.live
        ranks = self._ranks(remote_ranks) - {self.rank}
        for rank in sorted(ranks & group.view().members):
            group.retire(rank)
        self._connected -= ranks
        self._staged -= ranks
        for rank in ranks:
            self.calls.mask(rank, True)

    def admit(self, awaited: Iterable[int] = ()) -> None:
        """A safe point, which all members call at the same place: ranks that have connected come in.

        Args:
            awaited: safe points follow each other until these ranks are in
        """
        self.calls.admit(awaited)
        self._connected |= self.calls.present
        self._staged -= self.calls.present

    # ---- masks ----

    def update_mask_buffer(self, rank_to_mask: int, mask: bool = False) -> None:
        """Masks or unmasks a rank. If it was connected without activate, that is a safe point: all such ranks come in."""
        calls = self.calls
        whole(rank_to_mask, "rank_to_mask", 0, self.group_size - 1)
        if mask:
            if rank_to_mask == self.rank:
                raise ValueError("a rank cannot mask itself")
            calls.mask(rank_to_mask, True)
            return
        if rank_to_mask not in self._connected:
            raise ValueError(f"rank {rank_to_mask} is not connected: call connect_ranks() first")
        if rank_to_mask in self._staged:
            self.admit(self._staged)
        calls.mask(rank_to_mask, False)

    def query_mask_buffer(self, mask_status: torch.Tensor) -> None:
        """Writes 1 for masked ranks into @mask_status, int32 [capacity]: lost, late, masked, or not connected."""
        self.calls.query(mask_status)

    def clean_mask_buffer(self) -> None:
        """Unmasks all members. Ranks that are gone stay masked until a replacement comes in."""
        self.calls.unmask_all()

    def barrier(self) -> None:
        """Of all members: on the current stream if there is a device."""
        self.calls.barrier()

    # ---- memory and streams ----

    @staticmethod
    def is_sm90_compiled() -> bool:
        return True

    @staticmethod
    def set_num_sms(new_num_sms: int) -> None:
        """Not read: covey takes as many processors as pay."""
        if new_num_sms % 2:
            raise ValueError(f"num_sms is {new_num_sms}: it must be even")
        Buffer.num_sms = new_num_sms

    @staticmethod
    def capture() -> EventOverlap:
        """An event of the current stream."""
        return EventOverlap(EventHandle())

    @staticmethod
    def get_low_latency_buffer_size_hint(num_max_dispatch_tokens_per_rank: int, hidden: int, num_ranks: int,
                                         num_experts: int) -> int:
        """Addresses that handles of this shape take in host memory, which are touched as they are used."""
        return _low_latency.size_hint(num_max_dispatch_tokens_per_rank, hidden, num_ranks)

    @staticmethod
    def get_rdma_size_hint(num_max_dispatch_tokens_per_rank: int, hidden: int, num_ranks: int, num_experts: int) -> int:
        return Buffer.get_low_latency_buffer_size_hint(num_max_dispatch_tokens_per_rank, hidden, num_ranks, num_experts)

    def get_comm_stream(self) -> Any:
        """The stream of calls with async_finish."""
        return self.calls.own_stream()

    def get_local_buffer_tensor(self, dtype: torch.dtype, size: Optional[torch.Size] = None, offset: int = 0,
                                use_rdma_buffer: bool = False) -> torch.Tensor:
        """Scratch memory: nothing of covey is in it, so callers may write and clear it."""
        if offset < 0:
            raise ValueError(f"offset is {offset}: it must be 0 or more")
        itemsize = dtype.itemsize
        count = torch.Size(size).numel() if size is not None else 0
        need = max((offset + count) * itemsize, _SCRATCH_BYTES)
        if self._scratch is None or self._scratch.numel() < need:
            self._scratch = zeros(-(-need // 16) * 16, dtype=torch.uint8, device=self.calls.device)
        tensor = self._scratch.view(dtype)[offset:]
        return tensor if size is None else tensor[:count].view(size)

    @staticmethod
    def get_dispatch_config(num_ranks: int) -> Config:
        config = Config(Buffer.num_sms)
        config.num_sms_asked = 0
        return config

    get_combine_config = get_dispatch_config

    # ---- dispatch and combine ----

    def low_latency_dispatch(self, x: torch.Tensor, topk_idx: torch.Tensor, num_max_dispatch_tokens_per_rank: int,
                             num_experts: Optional[int] = None,
                             cumulative_local_expert_recv_stats: Optional[torch.Tensor] = None,
                             dispatch_wait_recv_cost_stats: Optional[torch.Tensor] = None, use_fp8: bool = True,
                             round_scale: bool = False, use_ue8m0: bool = False, async_finish: bool = False,
                             return_recv_hook: bool = False, **more: Any) -> Tuple:
        """Sends each token to the ranks that own its experts: expert e is on rank e // num_experts_per_rank.

        Args:
            x: [n, H] bfloat16 or float16
            topk_idx: [n, K] int32 or int64; an id below 0, or of a rank that is not there, is skipped
            num_max_dispatch_tokens_per_rank: T, the same on all ranks
            num_experts: not read, but for a check
            cumulative_local_expert_recv_stats: [El] int32: the rows of each expert are added
            dispatch_wait_recv_cost_stats: [R] int64: the wait for each source is added
            use_fp8: rows come in float8_e4m3fn with scales; the same on all ranks, and each call may choose
            round_scale: these scales are powers of two; the same on all ranks, and each call may choose
            use_ue8m0: with round_scale, and H a multiple of 512: scales are exponents, four in an int32: the scale is
                2^(exponent - 127)
            async_finish: on a device: on a stream of the buffer; wait for the event
            return_recv_hook: the call sends, and hook() receives

        Returns:
            recv_x [El, R * T, H], or (recv_x, scales [El, R * T, H / 128] float32, with use_ue8m0 [El, R * T, H / 512]
            int32, by column); R is the size of the group
            recv_count [El] int32, handle, EventOverlap, hook
        """
        refuse("dispatch()", more)
        calls, most = self.calls, self.group_size * self._experts_per_rank
        if num_experts is not None and (num_experts % self._experts_per_rank or not 0 < num_experts <= most):
            raise ValueError(f"num_experts is {num_experts}: it must be a multiple of {self._experts_per_rank}, the "
                             f"experts of a rank, and at most {most}")
        recv_x, count, rows, event, hook = _low_latency.dispatch(
            calls, x, topk_idx, num_max_dispatch_tokens_per_rank, self._experts_per_rank, use_fp8=use_fp8,
            round_scale=round_scale, use_ue8m0=use_ue8m0, stats=cumulative_local_expert_recv_stats,
            waits=dispatch_wait_recv_cost_stats, hook=return_recv_hook, event=async_finish)
        handle = Handle(rows, num_max_dispatch_tokens_per_rank, x.shape[1])
        return recv_x, count, handle, EventOverlap(event, (x, topk_idx)), hook

    def dispatch(self, *args: Any, **kwargs: Any) -> Tuple:
        return self.low_latency_dispatch(*args, **kwargs)

    def low_latency_combine(self, x: torch.Tensor, topk_idx: torch.Tensor, topk_weights: torch.Tensor, handle: Any,
                            use_logfmt: bool = False, zero_copy: bool = False, async_finish: bool = False,
                            return_recv_hook: bool = False, out: Optional[torch.Tensor] = None,
                            combine_wait_recv_cost_stats: Optional[torch.Tensor] = None, **more: Any) -> Tuple:
        """Brings the experts' results back: the sum over k of weight * row, in float32, rounded once.

        Args:
            x: [El, R * T, H], in the rows that the dispatch gave; not read with @zero_copy
            topk_idx, topk_weights: [n, K] of the tokens that were dispatched
            zero_copy: the results are in get_next_combine_buffer(handle)

        Returns:
            combined [n, H] (@out if it is given), EventOverlap, hook
        """
        refuse("combine()", {"use_logfmt": use_logfmt, **more}, _WHY_NOT)
        out, event, hook = _low_latency.combine(
            self.calls, handle, x, topk_idx, topk_weights, zero_copy=zero_copy, out=out,
            waits=combine_wait_recv_cost_stats, hook=return_recv_hook, event=async_finish)
        return out, EventOverlap(event, (x, topk_idx, topk_weights)), hook

    def combine(self, *args: Any, **kwargs: Any) -> Tuple:
        return self.low_latency_combine(*args, **kwargs)

    def _normal_size(self) -> int:
        return self.calls.size

    def _per_rank(self, num_experts: int) -> int:
        per_rank = super()._per_rank(num_experts)
        if per_rank != self._experts_per_rank:
            raise ValueError(f"num_experts is {num_experts}: it must be {self._experts_per_rank * self.calls.size}, "
                             f"{self._experts_per_rank} for each of the {self.calls.size} ranks of the group")
        return per_rank

    def ht_dispatch(self, x: Any, handle: Any = None, num_tokens_per_rank: Optional[torch.Tensor] = None,
                    num_tokens_per_rdma_rank: Optional[torch.Tensor] = None,
                    is_token_in_rank: Optional[torch.Tensor] = None,
                    num_tokens_per_expert: Optional[torch.Tensor] = None, topk_idx: Optional[torch.Tensor] = None,
                    topk_weights: Optional[torch.Tensor] = None, expert_alignment: int = 1,
                    config: Optional[Config] = None, previous_event: Any = None, async_finish: bool = False,
                    allocate_on_comm_stream: bool = False, **more: Any) -> Tuple:
        """As Buffer.dispatch() of covey.ep.deep_ep: a row for each rank that a token goes to."""
        refuse("ht_dispatch()", more)
        return self._dispatch(x, handle, is_token_in_rank, num_tokens_per_expert, topk_idx, topk_weights, expert_alignment,
                              0, config.num_sms_asked if config else 0, previous_event, async_finish)

    def ht_combine(self, x: torch.Tensor, handle: Any, topk_weights: Optional[torch.Tensor] = None, bias: Any = None,
                   config: Optional[Config] = None, previous_event: Any = None, async_finish: bool = False,
                   allocate_on_comm_stream: bool = False, **more: Any) -> Tuple:
        """As Buffer.combine() of covey.ep.deep_ep: sums the rows of each token, without weights."""
        refuse("ht_combine()", more)
        return combine(self.calls, handle, x, topk_weights, bias, previous_event, async_finish)

    def get_next_combine_buffer(self, handle: Handle) -> torch.Tensor:
        """A place for the experts' results, for a combine with zero_copy."""
        return _low_latency.handle_of(handle).buffer()


__all__ = ["Buffer", "Config", "EventOverlap", "topk_idx_t"]

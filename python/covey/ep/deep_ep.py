# SPDX-License-Identifier: Apache-2.0
"""DeepEP's buffers: Buffer (its first version: low latency and normal mode) and ElasticBuffer (its second).

    from covey.ep.deep_ep import Buffer

    buffer = Buffer(group, num_nvl_bytes, num_rdma_bytes, low_latency_mode=True)

Each buffer has a covey group of its own, whose ranks are those of @group. Tensors may be on the host, too.
"""

import functools
from typing import Any, Iterator, List, Optional, Tuple, Union

import torch

from .. import _abi
from .._plain import zeros
from . import _low_latency, _normal
from ._calls import Calls
from ._event import EventHandle, EventOverlap, refuse
from ._expand import Places, by_column, slots_at_owners, sources_of
from ._low_latency import Handle
from ._meeting import by_group, by_mpi, number
from ._normal import Routing
from ._normal_mode import NormalMode, combine, event_of
from .buffer import _WHY_NOT, Config, topk_idx_t

_DEFAULT_SMS = 24


def _meet(group: Any, comm: Any, window_bytes: int, timeout_ms: int) -> Calls:
    """The covey group of a new buffer."""
    if group is None and comm is None:
        raise ValueError("group and comm are None: a buffer needs the process group, or the communicator of mpi4py, of "
                         "its ranks")
    rank, size = (group.rank(), group.size()) if group is not None else (comm.Get_rank(), comm.Get_size())
    meeting = by_group(group, number()) if group is not None else by_mpi(comm)
    capacity = group.covey.max_ranks if hasattr(group, "covey") and group.covey is not None else size
    calls = Calls(rank, capacity)
    calls.meet(meeting, size, timeout_ms, window_bytes)
    return calls


class _Life:
    """What both buffers have."""

    explicitly_destroy: bool
    _calls: Optional[Calls]

    @property
    def calls(self) -> Calls:
        if self._calls is None:
            raise RuntimeError("the buffer is destroyed")
        return self._calls

    @property
    def runtime(self) -> Optional[Calls]:
        return self._calls

    def destroy(self) -> None:
        """Leaves the group."""
        if not self.explicitly_destroy:
            raise RuntimeError("make the buffer with explicitly_destroy=True to call destroy()")
        calls, self._calls = self._calls, None
        if calls is not None:
            calls.close(leaves=True)

    def admit(self) -> None:
        """Of covey alone: a safe point, which all ranks call at the same place. Connected replacements come in."""
        self.calls.admit()

    def get_comm_stream(self) -> Any:
        return self.calls.own_stream()


class Buffer(_Life, NormalMode):
    """DeepEP's Buffer.

    Attributes:
        rank, group_size, group: of the process group
        calls: what is behind it; `calls.group` is the covey.Group
    """

    num_sms: int = 20
    _lanes = 0  # what set_num_sms() said

    def __init__(self, group: Any, num_nvl_bytes: int = 0, num_rdma_bytes: int = 0, low_latency_mode: bool = False,
                 num_qps_per_rank: int = 24, allow_nvlink_for_low_latency_mode: bool = True, allow_mnnvl: bool = False,
                 use_fabric: Optional[bool] = None, explicitly_destroy: bool = False, enable_shrink: bool = False,
                 comm: Any = None, **more: Any):
        """All ranks of @group (or of @comm, of mpi4py) call it. What chooses ways and queues is taken and not read."""
        refuse("Buffer()", more)
        self.num_nvl_bytes, self.num_rdma_bytes = num_nvl_bytes, num_rdma_bytes
        self.low_latency_mode, self.enable_shrink = low_latency_mode, enable_shrink
        self.explicitly_destroy = explicitly_destroy
        self.group = group if group is not None else comm
        self._calls = _meet(group, comm, num_nvl_bytes + num_rdma_bytes, 0)
        self.rank = self._calls.rank
        self.group_size = group.size() if group is not None else comm.Get_size()

    @staticmethod
    def is_sm90_compiled() -> bool:
        return True

    @staticmethod
    def set_num_sms(new_num_sms: int) -> None:
        """The processors of a device that normal mode takes from its next dispatch without a handle on; the same on all
        ranks. Until this is called, or a Config of one's own is given: as many as pay."""
        if new_num_sms % 2 or not 0 < new_num_sms <= _abi.COVEY_DEVICE_MAX_LANES:
            raise ValueError(f"num_sms is {new_num_sms}: it must be even, from 2 to {_abi.COVEY_DEVICE_MAX_LANES}")
        Buffer.num_sms = Buffer._lanes = new_num_sms

    @staticmethod
    def _config() -> Config:
        config = Config(Buffer.num_sms)
        config.num_sms_asked = Buffer._lanes
        return config

    @staticmethod
    def capture() -> EventOverlap:
        """An event of the current stream."""
        return EventOverlap(EventHandle())

    @staticmethod
    def get_low_latency_rdma_size_hint(num_max_dispatch_tokens_per_rank: int, hidden: int, num_ranks: int,
                                       num_experts: int) -> int:
        """Addresses that handles of this shape take in host memory, which are touched as they are used."""
        return _low_latency.size_hint(num_max_dispatch_tokens_per_rank, hidden, num_ranks)

    @staticmethod
    def get_dispatch_config(num_ranks: int) -> Config:
        return Buffer._config()

    @staticmethod
    def get_combine_config(num_ranks: int) -> Config:
        return Buffer._config()

    def get_local_buffer_tensor(self, dtype: torch.dtype, size: Optional[torch.Size] = None, offset: int = 0,
                                use_rdma_buffer: bool = False) -> torch.Tensor:
        """Scratch memory: nothing of covey is in it."""
        count = size.numel() if size is not None else 1 << 14
        tensor = zeros(offset + count, dtype=dtype, device=self.calls.device)[offset:]
        return tensor if size is None else tensor.view(size)

    # ---- normal mode ----

    def _normal_size(self) -> int:
        return self.group_size

    def dispatch(self, x: Union[torch.Tensor, Tuple[torch.Tensor, torch.Tensor]], handle: Any = None,
                 num_tokens_per_rank: Optional[torch.Tensor] = None,
                 num_tokens_per_rdma_rank: Optional[torch.Tensor] = None,
                 is_token_in_rank: Optional[torch.Tensor] = None, num_tokens_per_expert: Optional[torch.Tensor] = None,
                 topk_idx: Optional[torch.Tensor] = None, topk_weights: Optional[torch.Tensor] = None,
                 expert_alignment: int = 1, num_worst_tokens: int = 0, config: Optional[Config] = None,
                 previous_event: Any = None, async_finish: bool = False, allocate_on_comm_stream: bool = False,
                 **more: Any) -> Tuple:
        """Sends each token once to each rank that owns any of its experts.

        Args:
            x: [n, H] bfloat16 or float16; or float8_e4m3fn with scales [n, H / 128]
            handle: of an earlier dispatch, or a tuple of its parts: these tokens go where those went; topk_idx and
                topk_weights are None
            num_tokens_per_expert: its length is the number of experts. Other results of get_dispatch_layout() are not
                read with topk_idx: covey counts by itself
            is_token_in_rank: [n, R] bool: without topk_idx it says where tokens go, and num_tokens_per_expert what the
                list has; a token goes to 32 ranks at most
            num_worst_tokens: rows here at most; the host looks at nothing, and the list is empty

        Returns:
            recv_x, recv_topk_idx (local ids; -1 of other ranks), recv_topk_weights, the rows of each local expert (a
            list), handle, EventOverlap. Without topk_idx the ids and the weights are None
        """
        refuse("dispatch()", more)
        return self._dispatch(x, handle, is_token_in_rank, num_tokens_per_expert, topk_idx, topk_weights, expert_alignment,
                              num_worst_tokens, (config or Buffer._config()).num_sms_asked, previous_event, async_finish)

    def combine(self, x: torch.Tensor, handle: Any, topk_weights: Optional[torch.Tensor] = None, bias: Any = None,
                config: Optional[Config] = None, previous_event: Any = None, async_finish: bool = False,
                allocate_on_comm_stream: bool = False, **more: Any) -> Tuple:
        """Sums the rows of each token, without weights.

        Args:
            x: [rows, H] as the dispatch gave them
            topk_weights: [rows, K]: come back too, summed
            bias: one [n, H], or two: added to the sums

        Returns:
            combined [n, H], combined weights [n, K] or None, EventOverlap
        """
        refuse("combine()", more)
        return combine(self.calls, handle, x, topk_weights, bias, previous_event, async_finish)

    def internode_dispatch(self, x: Any, handle: Any = None,
                           num_tokens_per_rank: Optional[torch.Tensor] = None,
                           num_tokens_per_rdma_rank: Optional[torch.Tensor] = None,
                           is_token_in_rank: Optional[torch.Tensor] = None,
                           num_tokens_per_expert: Optional[torch.Tensor] = None, topk_idx: Optional[torch.Tensor] = None,
                           topk_weights: Optional[torch.Tensor] = None, expert_alignment: int = 1,
                           config: Optional[Config] = None, previous_event: Any = None, async_finish: bool = False,
                           allocate_on_comm_stream: bool = False) -> Tuple:
        """dispatch(): covey knows by itself where ranks are."""
        return self.dispatch(x, handle, num_tokens_per_rank, num_tokens_per_rdma_rank, is_token_in_rank,
                             num_tokens_per_expert, topk_idx, topk_weights, expert_alignment, 0, config, previous_event,
                             async_finish, allocate_on_comm_stream)

    internode_combine = combine

    # ---- low latency ----

    def clean_low_latency_buffer(self, num_max_dispatch_tokens_per_rank: int, hidden: int, num_experts: int) -> None:
        """Nothing: tags tell old data from new."""

    def low_latency_dispatch(self, x: torch.Tensor, topk_idx: torch.Tensor, num_max_dispatch_tokens_per_rank: int,
                             num_experts: int, cumulative_local_expert_recv_stats: Optional[torch.Tensor] = None,
                             dispatch_wait_recv_cost_stats: Optional[torch.Tensor] = None,
                             x_global_scale: Optional[torch.Tensor] = None, use_fp8: bool = True,
                             round_scale: bool = False, use_ue8m0: bool = False, use_nvfp4: bool = False,
                             async_finish: bool = False, return_recv_hook: bool = False, **more: Any) -> Tuple:
        """As covey.ep.Buffer.dispatch(). Expert e is on rank e // (num_experts / R)."""
        refuse("low_latency_dispatch()", {"use_nvfp4": use_nvfp4, "x_global_scale": x_global_scale, **more})
        recv_x, count, rows, event, hook = _low_latency.dispatch(
            self.calls, x, topk_idx, num_max_dispatch_tokens_per_rank,
            _normal.experts_of_a_rank(num_experts, self.group_size), use_fp8=use_fp8,
            round_scale=round_scale, use_ue8m0=use_ue8m0, stats=cumulative_local_expert_recv_stats,
            waits=dispatch_wait_recv_cost_stats, hook=return_recv_hook, event=async_finish)
        handle = Handle(rows, num_max_dispatch_tokens_per_rank, x.shape[1], num_experts)
        return recv_x, count, handle, EventOverlap(event, (x, topk_idx)), hook

    def low_latency_combine(self, x: torch.Tensor, topk_idx: torch.Tensor, topk_weights: torch.Tensor, handle: Any,
                            use_logfmt: bool = False, zero_copy: bool = False, async_finish: bool = False,
                            return_recv_hook: bool = False, out: Optional[torch.Tensor] = None,
                            combine_wait_recv_cost_stats: Optional[torch.Tensor] = None, overlap: bool = False,
                            src_signals: Optional[torch.Tensor] = None, src_signal_expect_value: int = 0,
                            **more: Any) -> Tuple:
        """As covey.ep.Buffer.combine()."""
        refuse("low_latency_combine()", {"use_logfmt": use_logfmt, "overlap": overlap, "src_signals": src_signals,
                                         "src_signal_expect_value": src_signal_expect_value, **more}, _WHY_NOT)
        out, event, hook = _low_latency.combine(
            self.calls, handle, x, topk_idx, topk_weights, zero_copy=zero_copy, out=out,
            waits=combine_wait_recv_cost_stats, hook=return_recv_hook, event=async_finish)
        return out, EventOverlap(event, (x, topk_idx, topk_weights)), hook

    def low_latency_update_mask_buffer(self, rank_to_mask: int, mask: bool = False) -> None:
        if not 0 <= rank_to_mask < self.group_size or mask and rank_to_mask == self.rank:
            raise ValueError(f"rank_to_mask is {rank_to_mask}: it must be another rank, from 0 to {self.group_size - 1}")
        self.calls.mask(rank_to_mask, mask)

    def low_latency_query_mask_buffer(self, mask_status: torch.Tensor) -> None:
        """Writes 1 for masked ranks into @mask_status, int32 [R]: lost, late, or masked."""
        self.calls.query(mask_status, self.group_size)

    def low_latency_clean_mask_buffer(self) -> None:
        """Unmasks all members. Ranks that are gone stay masked until a replacement comes in."""
        self.calls.unmask_all()

    def get_next_low_latency_combine_buffer(self, handle: Handle) -> torch.Tensor:
        """A place for the experts' results, for a combine with zero_copy."""
        return _low_latency.handle_of(handle).buffer()


class EPHandle:
    """What ElasticBuffer.dispatch() gives; fields as there, but for those of its own memory.

    Attributes:
        num_recv_tokens: rows of tokens here; without do_cpu_sync the most that there can be
        num_expanded_tokens: rows with do_expand, else 0
        num_recv_tokens_per_expert_list: of each local expert, rounded up; without do_cpu_sync empty
        psum_num_recv_tokens_per_expert: [El] int32: their inclusive sums; with do_expand where the rows of each end
        num_unaligned_recv_tokens_per_expert: [El] int32: with do_expand the rows of each, else None
        psum_num_recv_tokens_per_scaleup_rank: [R] int32: inclusive sums of the rows of each source
    """

    def __init__(self, routing: Routing, num_experts: int, num_sms: int):
        rows, places = routing.rows, routing.places
        self.routing, self.num_experts, self.num_sms = routing, num_experts, num_sms
        self.expert_alignment, self.num_max_tokens_per_rank = routing.alignment, routing.shape.tokens
        self.topk_idx = routing.topk_idx
        self.num_recv_tokens, self.num_recv_tokens_per_expert_list = routing.received, routing.per_expert
        self.psum_num_recv_tokens_per_expert = places.ends if places else rows.sums
        self.psum_num_recv_tokens_per_scaleup_rank = rows.sums_by_rank
        self.do_expand, self.num_expanded_tokens = places is not None, places.rows if places else 0
        self.num_unaligned_recv_tokens_per_expert = places.counts if places else None

    @functools.cached_property
    def recv_src_metadata(self) -> torch.Tensor:
        """[rows of tokens, 2 + K] int32: source * num_max_tokens_per_rank + token; source * K + the first k of an expert
        here; the expanded row of each k, -1 where there is none."""
        rows, n = self.routing.rows, self.routing.received
        return sources_of(rows, rows.ids[:n], self.routing.places, self.num_max_tokens_per_rank)

    @functools.cached_property
    def dst_buffer_slot_idx(self) -> torch.Tensor:
        """[n, K] int32: this token's place among the tokens of this rank for the same rank; -1: no expert, or the rank is
        that of an earlier k."""
        return slots_at_owners(self.topk_idx, self.routing.shape.per_rank)


class ElasticBuffer(_Life):
    """DeepEP's second buffer.

    Attributes:
        rank_idx, num_ranks, num_bytes, num_max_tokens_per_rank
        num_scaleup_ranks, num_scaleout_ranks: all ranks, and 1: covey has no levels
    """

    def __init__(self, group: Any, num_bytes: Optional[int] = None, num_cpu_bytes: int = 0,
                 num_max_tokens_per_rank: int = 0, hidden: int = 0, num_topk: int = 0, use_fp8_dispatch: bool = False,
                 deterministic: bool = False, allow_hybrid_mode: bool = True, allow_multiple_reduction: bool = True,
                 prefer_overlap_with_compute: bool = True, sl_idx: int = 3, num_allocated_qps: int = 0,
                 num_cpu_timeout_secs: int = 300, num_gpu_timeout_secs: int = 100, explicitly_destroy: bool = False,
                 **more: Any):
        """@num_gpu_timeout_secs: a rank that a call waits for in vain for so long is removed. Rows have one order."""
        refuse("ElasticBuffer()", {"num_cpu_bytes": num_cpu_bytes, **more})
        self.group, self.rank_idx, self.num_ranks = group, group.rank(), group.size()
        self.num_bytes = num_bytes if num_bytes is not None else self.get_buffer_size_hint(
            group, num_max_tokens_per_rank, hidden, num_topk)
        self.num_max_tokens_per_rank, self.deterministic = num_max_tokens_per_rank, deterministic
        self.allow_hybrid_mode, self.allow_multiple_reduction = allow_hybrid_mode, allow_multiple_reduction
        self.prefer_overlap_with_compute, self.explicitly_destroy = prefer_overlap_with_compute, explicitly_destroy
        self.num_allocated_qps = num_allocated_qps
        self.num_scaleout_ranks = self.num_rdma_ranks = 1
        self.num_scaleup_ranks = self.num_nvlink_ranks = self.num_ranks
        self.scaleout_rank_idx, self.scaleup_rank_idx = 0, self.rank_idx
        self._calls = _meet(group, None, self.num_bytes, 1000 * num_gpu_timeout_secs)

    @staticmethod
    def get_buffer_size_hint(group: Any, num_max_tokens_per_rank: int, hidden: int, num_topk: int = 0,
                             use_fp8_dispatch: bool = False, allow_hybrid_mode: bool = True,
                             allow_multiple_reduction: bool = True) -> int:
        """Addresses that handles of this shape take in host memory, which are touched as they are used."""
        bytes_needed = 2 * 4 * num_max_tokens_per_rank * (2 * hidden + 1024) * (group.size() + 1)
        return -(-bytes_needed // (2 << 20)) * (2 << 20)

    @staticmethod
    def capture() -> EventHandle:
        return EventHandle()

    def get_physical_domain_size(self) -> Tuple[int, int]:
        return self.num_rdma_ranks, self.num_nvlink_ranks

    def get_logical_domain_size(self) -> Tuple[int, int]:
        return self.num_scaleout_ranks, self.num_scaleup_ranks

    def get_theoretical_num_sms(self, num_experts: int, num_topk: int, num_scaleout_topk: int = 0, rdma_gbs: float = 0,
                                nvlink_gbs: float = 0, sm_read_gbs: float = 200, sm_write_gbs: float = 50) -> int:
        """A number for callers that want one: covey takes as many processors as pay."""
        return _DEFAULT_SMS

    def get_theoretical_num_qps(self, num_sms: int) -> int:
        return 0

    def barrier(self, use_comm_stream: bool = True, with_cpu_sync: bool = False, sequential: bool = True) -> None:
        self.calls.barrier()
        if with_cpu_sync and self.calls.device.type == "cuda":
            torch.cuda.synchronize(self.calls.device)

    def dispatch(self, x: Union[torch.Tensor, Tuple[torch.Tensor, torch.Tensor]], topk_idx: Optional[torch.Tensor] = None,
                 topk_weights: Optional[torch.Tensor] = None,
                 cumulative_local_expert_recv_stats: Optional[torch.Tensor] = None, num_experts: Optional[int] = None,
                 num_max_tokens_per_rank: Optional[int] = None, expert_alignment: Optional[int] = None, num_sms: int = 0,
                 num_qps: int = 0, previous_event: Optional[EventHandle] = None,
                 previous_event_before_epilogue: Optional[EventHandle] = None, async_with_compute_stream: bool = False,
                 allocate_on_comm_stream: bool = False, handle: Optional[EPHandle] = None, do_handle_copy: bool = True,
                 do_cpu_sync: Optional[bool] = None, do_expand: bool = False, do_zero_padding: bool = False,
                 use_tma_aligned_col_major_sf: bool = False, **more: Any) -> Tuple:
        """As Buffer.dispatch().

        Args:
            do_cpu_sync: False: the host looks at nothing, and R * num_max_tokens_per_rank rows are given, of which
                those past the last have -1 in recv_topk_idx. None: True, but with a handle as its first dispatch
            num_sms: processors of a device that this dispatch and its combine take; 0: as many as pay
            do_expand: a row for each expert of a token, expert by expert; each begins at a multiple of expert_alignment.
                recv_topk_idx is None, and recv_topk_weights [rows]. Rows are copied once more for it
            do_zero_padding: with do_expand: rows that fill up are zeros; else they have anything
            use_tma_aligned_col_major_sf: scales are by column, and each group begins at a multiple of 16 bytes
            num_qps, allocate_on_comm_stream: not read

        Returns:
            recv_x, recv_topk_idx, recv_topk_weights, handle, EventOverlap
        """
        refuse("dispatch()", {"previous_event_before_epilogue": previous_event_before_epilogue, **more})
        if do_zero_padding and not do_expand:
            raise ValueError("do_zero_padding is True: it needs do_expand, without which nothing is filled up")
        if handle is not None:
            if topk_idx is not None:
                raise ValueError("handle and topk_idx are given: the handle has it")
            if bool(do_expand) != handle.do_expand:
                raise ValueError(f"do_expand is {bool(do_expand)}: the dispatch of the handle had {handle.do_expand}")
            routing, looks = handle.routing, bool(handle.num_recv_tokens_per_expert_list)
            if topk_weights is not None:
                routing.weights = topk_weights
        else:
            if topk_idx is None or num_experts is None:
                raise ValueError("topk_idx or num_experts is None: a dispatch without a handle needs both")
            tokens, looks = num_max_tokens_per_rank or self.num_max_tokens_per_rank, do_cpu_sync is not False
            if tokens < 1:
                raise ValueError("num_max_tokens_per_rank is 0: give it here or to ElasticBuffer()")
            per_rank = _normal.experts_of_a_rank(num_experts, self.num_ranks)
        previous = event_of(previous_event)
        with self.calls.beside(x, async_with_compute_stream, previous) as give:
            if handle is None:
                routing = _normal.route(x, topk_idx.clone() if do_handle_copy else topk_idx, topk_weights, tokens, per_rank,
                                        expert_alignment or 1, tokens * self.num_ranks, num_sms, self.rank_idx)
            event = _normal.dispatch(self.calls, routing, x, looks, cumulative_local_expert_recv_stats, True,
                                     async_with_compute_stream, previous)
            rows, n = routing.rows, routing.received
            given: Any = _normal.received(routing), rows.ids[:n], rows.recv_weights[:n]
            if do_expand or use_tma_aligned_col_major_sf:
                given, event = self.calls.behind(event, rows.ids, lambda: _laid_out(
                    routing, given, looks, do_expand, do_zero_padding, use_tma_aligned_col_major_sf))
            give(*rows.rooms, rows.ids, rows.sums, rows.sums_by_rank, routing.topk_idx, routing.weights,
                 *(routing.places.tensors() if do_expand else ()), *_flat(given))
        if handle is None:
            handle = EPHandle(routing, num_experts, num_sms)
        recv_x, recv_ids, recv_weights = given
        return recv_x, recv_ids, None if topk_weights is None else recv_weights, handle, EventOverlap(event)

    def combine(self, x: torch.Tensor, handle: EPHandle, topk_weights: Optional[torch.Tensor] = None, bias: Any = None,
                num_sms: int = 0, num_qps: int = 0, previous_event: Optional[EventHandle] = None,
                previous_event_before_epilogue: Optional[EventHandle] = None, async_with_compute_stream: bool = False,
                allocate_on_comm_stream: bool = False, **more: Any) -> Tuple:
        """As Buffer.combine(). Of a dispatch with do_expand: @x are its rows, whose sums for each token are made here, in
        float32, rounded once; @topk_weights [rows]."""
        refuse("combine()", {"previous_event_before_epilogue": previous_event_before_epilogue, **more})
        return combine(self.calls, handle.routing, x, topk_weights, bias, previous_event, async_with_compute_stream)


def _laid_out(routing: Routing, given: Any, looks: bool, expand: bool, zeros: bool, columns: bool) -> tuple:
    """@given, the rows of tokens, their ids and weights, as a caller of ElasticBuffer wants them."""
    recv_x, ids, weights = given
    if expand:
        routing.places = Places(ids, routing.shape.per_rank, routing.alignment, looks)
        routing.per_expert = routing.places.per_expert
        spread = routing.places.spread
        recv_x = tuple(spread(t, zeros) for t in recv_x) if isinstance(recv_x, tuple) else spread(recv_x, zeros)
        ids, weights = None, routing.places.weights(weights)
    if columns and isinstance(recv_x, tuple):
        recv_x = recv_x[0], by_column(recv_x[1])
    return recv_x, ids, weights


def _flat(given: tuple) -> Iterator[torch.Tensor]:
    """All tensors in @given."""
    for part in given:
        if isinstance(part, tuple):
            yield from part
        elif part is not None:
            yield part


__all__: List[str] = ["Buffer", "Config", "EPHandle", "ElasticBuffer", "EventHandle", "EventOverlap", "topk_idx_t"]

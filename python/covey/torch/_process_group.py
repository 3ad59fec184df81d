# SPDX-License-Identifier: Apache-2.0
"""The process group "covey": torch's operations as calls of covey.

An operation on the host is started, and its work waits for it. An operation on a device is launched: on the current
stream, or, with async_op, on a stream of the group that first waits for the current one. A group has its operations on
one stream at a time: when that changes, the new one waits for the last one.
"""

import copy
import ctypes
import time
from datetime import timedelta
from typing import Any, Callable, List, Optional, Sequence

import torch
from torch.distributed import AllreduceOptions
from torch.distributed import ProcessGroup as _Base
from torch.distributed import ReduceOp

from .. import _abi
from .._library import lib
from ..errors import PeerError
from ..errors import TimeoutError as CoveyTimeout
from ..errors import check as check_code
from ..errors import error_of
from ..outcome import SLICE_NS, Outcome, Work
from ._errors import errors_of_torch, translated
from ._options import Options
from ._reconfigure import Reconfigurable
from ._tensors import REDUCED, bytes_of, dense, flat, reduction, unflat, whole
from ._work import DeviceWork, DoneWork, Finisher, HostWork

_SIZES, _TIMEOUT, _PEER = ctypes.c_size_t, -3, -20
_MONITOR_TAG = 2**31 - 2
_SUM, _AVG = ReduceOp.SUM, ReduceOp.AVG
_SUMS = {known: (int(dtype), int(_abi.Redop.SUM)) for known, dtype in REDUCED.items()}
_AVERAGES = {known: (int(dtype), int(_abi.Redop.AVG)) for known, dtype in REDUCED.items()}
_UNIFORM = frozenset(["covey_allreduce", "covey_broadcast", "covey_allgather", "covey_allgatherv", "covey_barrier"])


def _one(tensors: Any) -> torch.Tensor:
    if isinstance(tensors, torch.Tensor):
        return tensors
    if len(tensors) != 1:
        raise ValueError(f"{len(tensors)} tensors: a rank has one device, so one tensor is needed")
    return tensors[0]


def _op_of(opts: Any) -> Any:
    return ReduceOp.SUM if opts is None else getattr(opts, "reduceOp", opts)


def _root_of(opts: Any) -> int:
    return opts if isinstance(opts, int) else opts.rootRank


def _timeout_of(opts: Any) -> Optional[float]:
    timeout = getattr(opts, "timeout", None)
    seconds = timeout.total_seconds() if isinstance(timeout, timedelta) else 0
    return seconds if seconds > 0 else None


class ProcessGroup(_Base):
    """torch's process group over a covey.Group, which is its attribute `covey`."""

    def __init__(self, group: Any, timeout: Optional[float], options: Options, store: Any = None,
                 reconfigurable: Optional[Reconfigurable] = None, farewell: Optional[Callable] = None,
                 make: Optional[Callable] = None):
        """@group: None: the first reconfigure() makes it, by @reconfigurable. @farewell(members): called at the end.

        @make(options, rank, size, name): joins a group of this job.
        """
        super().__init__(group.rank if group else 0, group.size if group else 1)
        self.options_of_covey = options
        self._timeout_s, self._store = timeout, store
        self._reconfigurable, self._farewell, self._make = reconfigurable, farewell, make
        self._cuda = None if options.device == "none" else torch.device("cuda", int(options.device))
        self._splits = 0
        self._rounds = 0  # of monitored_barrier()
        self._awaited: dict = {}  # receives for it that have timed out, by peer
        self._name = self._description = ""
        self._attach(group)

    def _attach(self, group: Any) -> None:
        """Begins anew with @group."""
        self.covey = group
        founds = group is not None and not self.options_of_covey.is_extension
        self._admitted_epoch = 1 if founds else None  # that of the founders' view, whatever has become of it since
        self._admitted_ranks: frozenset = frozenset(range(group.size)) if founds else frozenset()
        self._error: Optional[BaseException] = None  # of the last operation on the host that failed, until admit()
        self._finisher = Finisher()
        self._launched = self._collectives = 0  # operations on the device; those that all ranks launch
        self._last: Any = None  # the stream of the last one
        self._last_address: Optional[int] = None  # of that stream, if it was not captured
        self._own_stream: Any = None
        self._look: Optional[_Look] = None
        self._batch: Optional[List[Any]] = None  # works since start of coalescing
        self._messages: List[tuple] = []  # on devices, not launched yet
        self._result = _abi.covey_result()  # of launches; messages write it at the end of their batch
        self._active: Optional[torch.Tensor] = None
        self._active_known: Optional[torch.Tensor] = None
        self._active_seq = 0
        if group:
            with errors_of_torch():
                group.set_on_loss(self.options_of_covey.on_loss)

    # ---- what torch asks ----

    def getBackendName(self) -> str:
        return "covey"

    _get_backend_name = name = getBackendName

    def rank(self) -> int:
        return self.covey.rank if self.covey else 0

    def size(self) -> int:
        return self.covey.size if self.covey else 1

    getRank, getSize = rank, size

    def setGroupName(self, name: str) -> None:
        self._name = name
        super()._set_group_name(name)

    def setGroupDesc(self, description: str) -> None:
        self._description = description
        super()._set_group_desc(description)

    def getGroupName(self) -> str:
        return self._name

    def getGroupDesc(self) -> str:
        return self._description

    _set_group_name, _set_group_desc = setGroupName, setGroupDesc
    group_name = property(getGroupName)
    group_desc = property(getGroupDesc)

    def _get_backend(self, device: Any = None) -> "ProcessGroup":
        return self

    get_backend = _get_backend

    @property
    def _device_types(self) -> list:
        return [torch.device("cpu")] + ([torch.device("cuda")] if self.options_of_covey.device != "none" else [])

    def get_group_store(self) -> Any:
        return self._store

    def _has_hooks(self) -> bool:
        return False

    def _wait_for_pending_works(self) -> None:
        self._flush()

    def _set_sequence_number_for_group(self) -> None:
        pass

    def _get_sequence_number_for_group(self) -> int:
        return self.covey.view().done_seq

    def set_timeout(self, timeout: timedelta) -> None:
        self._timeout_s = timeout.total_seconds()

    _set_default_timeout = set_timeout

    def eager_connect_single_device(self, device: Any = None) -> None:
        """Nothing: a member is connected to all when it has joined."""

    supports_splitting = property(lambda self: self._make is not None)
    supports_coalescing = property(lambda self: True)
    supports_time_estimate = property(lambda self: False)
    supports_shrinking = property(lambda self: False)
    supports_window = property(lambda self: False)

    def supports_tensor_alloc(self, device: Any = None) -> bool:
        return False

    # ---- life ----

    def abort(self) -> None:
        """Ends every present and later call with AbortedError; never waits. reconfigure() begins anew."""
        if self.covey:
            self.covey.abort()

    def get_error(self) -> Any:
        """COMM_ERROR if a rank of the last safe point is gone."""
        from torch._C._distributed_c10d import ErrorType

        if not self.covey or not self.covey._handle:
            return ErrorType.SUCCESS
        view = self.covey.view()
        gone = self._admitted_ranks - view.members - view.pending
        return ErrorType.COMM_ERROR if gone else ErrorType.SUCCESS

    # ---- torch's elasticity: each reconfigure() forms a new group ----

    @property
    def supports_reconfigure(self) -> bool:
        return self._reconfigurable is not None

    def get_reconfigure_handle(self) -> str:
        """What reconfigure() of the others needs of this process."""
        return self._reconfigurable.handle

    def reconfigure(self, opts: Any) -> Any:
        """Forms a group of the processes with opts.handles, in their order. It returns when all are there."""
        seconds = opts.timeout.total_seconds() if opts.timeout else self._timeout_s
        where = self._reconfigurable.place(opts.uuid, opts.handles)
        if self.covey and self.covey._handle:
            self._depart(1)
        self._attach(self._reconfigurable.join(where, seconds))
        return HostWork([], [])

    def shutdown(self) -> None:
        """Leaves the group, if its members still answer, and closes it."""
        if self.covey and self.covey._handle:
            members = len(self.covey.view().members)
            self._depart(5)
            if self._farewell:
                self._farewell(members)

    close = shutdown

    def _depart(self, seconds: float) -> None:
        """Leaves and closes the group. Who only closes it may take along what others still lack."""
        try:
            self._flush()
            self.covey.leave(seconds)
        except Exception:  # it is closed all the same: the others see a death
            pass
        self.covey.close()

    # ---- how an operation is called ----

    def _host(self, calls: Sequence[tuple], results: List[torch.Tensor], opts: Any, after: Optional[Callable] = None,
              kept: Any = None) -> HostWork:
        """Starts operations on host memory: (name, arguments) each."""
        self._flush()
        if self._active is not None and calls[0][0] in _UNIFORM:
            after = _all([*filter(None, [after]), self._write_contributors])
        with errors_of_torch():
            works = [self.covey._start(name, arguments, (results, kept), None) for name, arguments in calls]
        return self._batched(HostWork(works, results, after, _timeout_of(opts) or self._timeout_s, self))

    def _write_contributors(self, outcomes: list) -> None:
        if outcomes[-1].seq < self._active_seq:  # works may be waited for in another order
            return
        self._active_seq = outcomes[-1].seq
        active = torch.zeros(self.covey.max_ranks, dtype=torch.int32)
        active[sorted(outcomes[-1].ranks)] = 1
        self._refresh_active(active)

    def _batched(self, work: Any) -> Any:
        if self._batch is not None:
            self._batch.append(work)
        return work

    def _device(self, calls: Sequence[tuple], results: List[torch.Tensor], opts: Any,
                before: Optional[Callable] = None, after: Optional[Callable] = None, kept: Any = None) -> DeviceWork:
        """Launches operations; @before and @after launch copies in front of them and behind. @kept: further tensors."""
        self._flush()
        self._refresh_active()
        capturing = torch.cuda.is_current_stream_capturing()
        overlaps = bool(getattr(opts, "asyncOp", False))
        stream = self._stream_for(results[0].device, overlaps, capturing)
        if before or after:
            with torch.cuda.stream(stream):
                if before:
                    before()
                self._launch(calls, stream)
                if after:
                    after(None)
        else:
            self._launch(calls, stream)
        if overlaps and not capturing:
            for tensor in (*results, *(kept if isinstance(kept, (list, tuple)) else [kept])):
                if tensor is not None:
                    tensor.record_stream(stream)
        if not capturing and self.options_of_covey.on_loss == "fail":
            self._look_now_and_then(len(calls), stream)
        return self._batched(DeviceWork(self, stream, results, self._launched, overlaps, kept))

    def _launch(self, calls: Sequence[tuple], stream: Any) -> None:
        on = stream.cuda_stream or _abi.COVEY_STREAM_DEFAULT
        with errors_of_torch():
            for name, arguments in calls:
                check_code(getattr(lib, name)(*arguments, self.covey._handle, on, ctypes.byref(self._result)),
                           self.covey._handle)
        self._launched += len(calls)

    def _stream_for(self, device: torch.device, overlaps: bool, capturing: bool) -> Any:
        stream = torch.cuda.current_stream(device)
        if overlaps:
            if self._own_stream is None:
                self._own_stream = torch.cuda.Stream(device)
            self._own_stream.wait_stream(stream)
            stream = self._own_stream
        if self._last is not None and self._last != stream and _captures(self._last) == capturing:
            stream.wait_stream(self._last)
        self._last = stream
        self._last_address = None if capturing else stream.cuda_stream
        return stream

    def _look_now_and_then(self, count: int, stream: Any) -> None:
        """Under on_loss "fail" outcomes lack a lost rank until admit(), so one in some tells.

        It is copied when all ranks have launched as many collectives, and looked at when all have launched as many
        more: the exception comes at the same call on all of them, and the host waits for nothing that is under way.
        """
        every = self.options_of_covey.check_every
        turns = (self._collectives + count) // every - self._collectives // every
        self._collectives += count
        if not turns:
            return
        if self._look is None:
            self._look = _Look(self._outcome_words())
        self._miss(self._look.missing(self._admitted_ranks), 0, 0)
        self._look.begin(stream)

    def _outcome_words(self) -> torch.Tensor:
        """The last outcome, where the device keeps it: struct covey_device_outcome as four numbers of 64 bits."""
        at = ctypes.c_void_p()
        check_code(lib.covey_device_outcome_at(self.covey._handle, ctypes.byref(at)), self.covey._handle)
        return torch.as_tensor(_DeviceWords(at.value), device=self._cuda)

    def check(self) -> Any:
        """Raises what became of the operations so far. On devices it is a collective, and the host waits.

        A barrier tells for all of them, graphs that were replayed too: a lost rank stays lost until admit(), and who
        takes part in a barrier is the same on all ranks.
        """
        if self._cuda is None:
            if self._error:
                raise self._error
            return None
        self._flush()
        self._device([("covey_barrier", ())], [torch.empty(0, device=self._cuda)], None)
        return self._judge()

    def _judge(self) -> Any:
        """The outcome of the last operation, waited for."""
        self._last.synchronize()
        with errors_of_torch():
            outcome = self.covey.device_result()
            if outcome.status:
                raise error_of(outcome.status, self.covey._handle, outcome)
        if self.options_of_covey.on_loss == "fail":
            self._miss(self._admitted_ranks - outcome.ranks, outcome.epoch, outcome.seq)
        return outcome

    def _miss(self, ranks: frozenset, epoch: int, seq: int) -> None:
        if ranks:
            lost = sorted(ranks)
            raise translated(PeerError(_PEER, f"ranks {lost}, of the last safe point, did not contribute", lost[0],
                                       epoch, seq))

    def _call(self, calls: Sequence[tuple], results: List[torch.Tensor], opts: Any, before: Optional[Callable] = None,
              after: Optional[Callable] = None, kept: Any = None) -> Any:
        if results[0].is_cuda:
            return self._device(calls, results, opts, before, after, kept)
        if before:
            before()
        return self._host(calls, results, opts, after, kept)

    def _quick(self, call: Any, start: Any, arguments: tuple, out: torch.Tensor, opts: Any) -> Any:
        """One operation whose caller waits at once, with little of Python. None: only the long way will do."""
        if self._batch is not None or self._messages or self._active is not None:
            return None
        if out.is_cuda:
            return self._quick_on_device(call, arguments, out)
        group, handle, raw = self.covey, ctypes.c_void_p(), _abi.covey_result()
        with group._lock:
            code = -41 if not group._handle else start(*arguments, group._handle, None, ctypes.byref(handle))
            group._inside += 1
        rest, freed = None, False
        try:
            if not code:
                code = lib.covey_work_wait(handle, time.monotonic_ns() + SLICE_NS, ctypes.byref(raw))
                if code == _TIMEOUT and raw.status != _TIMEOUT:  # a slice has passed: it is waited for as any other
                    rest = self._adopt(handle, out)
                else:
                    freed = True
                    lib.covey_work_free(handle)
        except BaseException:
            if not freed:
                self._adopt(handle, out)
            raise
        finally:
            with group._lock:
                group._inside -= 1
                if not group._handle:  # close() waits for it
                    group._idle.notify_all()
        if rest:
            return HostWork([rest], [out], None, _timeout_of(opts) or self._timeout_s, self)
        outcome = Outcome(raw)
        if code:
            self._error = translated(error_of(code, group._handle, outcome if raw.seq else None))
            raise self._error
        return DoneWork(out, outcome)

    def _adopt(self, handle: Any, out: torch.Tensor) -> Any:
        """A work of C that has begun, as one of the group."""
        work = Work(self.covey, out, out)
        work._handle = handle
        with self.covey._lock:
            self.covey._works.add(work)
        return work

    def _quick_on_device(self, call: Any, arguments: tuple, out: torch.Tensor) -> Any:
        """On the stream of the last operation, without a look at outcomes."""
        on = torch._C._cuda_getCurrentRawStream(out.device.index)
        if on != self._last_address or torch._C._cuda_isCurrentStreamCapturing():
            return None
        if self.options_of_covey.on_loss == "fail":
            if (self._collectives + 1) % self.options_of_covey.check_every == 0:
                return None
            self._collectives += 1
        code = call(*arguments, self.covey._handle, on or _abi.COVEY_STREAM_DEFAULT, ctypes.byref(self._result))
        if code:
            raise translated(error_of(code, self.covey._handle))
        self._launched += 1
        return DeviceWork(self, self._last, [out], self._launched, False)

    # ---- reductions ----

    def allreduce(self, tensors: Any, opts: Any = None, timeout: Any = None) -> Any:
        t = tensors[0] if type(tensors) is list and len(tensors) == 1 else _one(tensors)
        if type(opts) is AllreduceOptions and not opts.asyncOp:
            op = opts.reduceOp
            plain = _SUMS.get(t.dtype) if op == _SUM else _AVERAGES.get(t.dtype) if op == _AVG else None
            if plain and t.is_contiguous():
                at = t.data_ptr()
                work = self._quick(lib.covey_allreduce, lib.covey_allreduce_start, (at, at, t.numel(), *plain), t, opts)
                if work:
                    return work
        return self.allreduce_coalesced([t], opts)

    def allreduce_coalesced(self, tensors: Any, opts: Any = None) -> Any:
        tensors = [tensors] if isinstance(tensors, torch.Tensor) else list(tensors)
        calls, befores, afters = [], [], []
        for t in tensors:
            how = reduction(_op_of(opts), t.dtype)
            whole(t, "the tensor")
            if how.scale is not None:
                befores.append(lambda t=t, scale=how.scale: t.mul_(scale))
            if how.fold:
                afters.append(self._fold(t, how.fold, calls))
            else:
                calls.append(("covey_allreduce", (t.data_ptr(), t.data_ptr(), t.numel() * how.per_element, how.dtype,
                                                  how.redop)))
        return self._call(calls, tensors, opts, _all(befores), _all(afters))

    def _fold(self, t: torch.Tensor, fold: Callable, calls: list) -> Callable:
        """A reduction that covey has not: blocks are gathered, and folded in the order of ranks."""
        if t.is_cuda:
            raise TypeError(f"on a device covey has no such reduction of {t.dtype}")
        t = t.as_strided((t.numel(),), (1,))  # as it lies in memory
        blocks = torch.empty((self.size(), t.numel()), dtype=t.dtype)
        count, dtype = bytes_of(t)
        calls.append(("covey_allgather", (t.data_ptr(), blocks.data_ptr(), count, dtype)))
        index = len(calls) - 1

        def after(outcomes):
            ranks = sorted(outcomes[index].ranks)
            t.copy_(blocks[ranks[0]])
            for r in ranks[1:]:
                fold(t, blocks[r], out=t)

        return after

    def reduce(self, tensors: Any, opts: Any, op: Any = None) -> Any:
        t, root = dense(_one(tensors), "the tensor"), _root_of(opts)
        how = reduction(op if op is not None else _op_of(opts), t.dtype)
        if how.fold:
            raise TypeError(f"reduce() of {t.dtype}: covey has no such reduction")
        at = t.data_ptr()
        arguments = (at, at if self.rank() == root else None, t.numel() * how.per_element, how.dtype, how.redop, root)
        before = (lambda: t.mul_(how.scale)) if how.scale is not None else None
        return self._call([("covey_reduce", arguments)], [t], opts, before)

    def reduce_scatter_tensor_coalesced(self, outputs: Any, inputs: Any, opts: Any = None) -> Any:
        calls, befores, kept = [], [], []
        for out, source in zip(outputs, inputs):
            how = reduction(_op_of(opts), out.dtype)
            if how.fold:
                raise TypeError(f"reduce_scatter of {out.dtype}: covey has no such reduction")
            source = source.contiguous()
            _alike(source, dense(out, "the output"))
            self._blocks(source, out.numel(), "the input")
            if how.scale is not None:
                scaled = torch.empty_like(source)
                befores.append(lambda a=source, b=scaled, s=how.scale: torch.mul(a, s, out=b))
                kept.append(source)
                source = scaled
            kept.append(source)
            calls.append(("covey_reduce_scatter", (source.data_ptr(), out.data_ptr(), out.numel() * how.per_element,
                                                   how.dtype, how.redop)))
        return self._call(calls, list(outputs), opts, _all(befores), None, kept)

    def _reduce_scatter_base(self, output: torch.Tensor, source: torch.Tensor, opts: Any = None) -> Any:
        return self.reduce_scatter_tensor_coalesced([output], [source], opts)

    def reduce_scatter(self, outputs: Any, inputs: Any, opts: Any = None, *rest) -> Any:
        out = _one(outputs)
        parts = inputs[0] if isinstance(inputs[0], (list, tuple)) else inputs
        if any(p.numel() != out.numel() for p in parts):
            raise ValueError("reduce_scatter: all inputs must be as large as the output")
        return self._reduce_scatter_base(out, flat(parts), opts)

    # ---- the rest of the collectives ----

    def broadcast(self, tensors: Any, opts: Any, *rest) -> Any:
        t = whole(_one(tensors), "the tensor")
        count, dtype = bytes_of(t)
        return self._call([("covey_broadcast", (t.data_ptr(), t.data_ptr(), count, dtype, _root_of(opts)))], [t], opts)

    def _blocks(self, tensor: torch.Tensor, count: int, what: str) -> None:
        if tensor.numel() != count * self.size():
            raise ValueError(f"{what} has {tensor.numel()} elements: {self.size()} blocks of {count} are needed")

    def allgather_into_tensor_coalesced(self, outputs: Any, inputs: Any, opts: Any = None) -> Any:
        calls, kept = [], []
        for out, source in zip(outputs, inputs):
            source = source.contiguous()
            kept.append(source)
            _alike(source, dense(out, "the output"))
            self._blocks(out, source.numel(), "the output")
            count, dtype = bytes_of(source)
            calls.append(("covey_allgather", (source.data_ptr(), out.data_ptr(), count, dtype)))
        return self._call(calls, list(outputs), opts, None, None, kept)

    def _allgather_base(self, output: torch.Tensor, source: torch.Tensor, opts: Any = None, *rest) -> Any:
        return self.allgather_into_tensor_coalesced([output], [source], opts)

    def allgather(self, outputs: Any, inputs: Any, opts: Any = None, *rest) -> Any:
        outs = outputs[0] if isinstance(outputs[0], (list, tuple)) else outputs
        source = _one(inputs).contiguous()
        if len(outs) != self.size():
            raise ValueError(f"allgather: {len(outs)} outputs, the group's size is {self.size()}")
        room = torch.empty(sum(t.numel() for t in outs), dtype=source.dtype, device=source.device)
        count, dtype = bytes_of(source)
        if all(t.numel() == source.numel() for t in outs):
            call = ("covey_allgather", (source.data_ptr(), room.data_ptr(), count, dtype))
        else:
            counts = [bytes_of(t)[0] for t in outs]
            call = ("covey_allgatherv", (source.data_ptr(), count, room.data_ptr(), *_places(counts), dtype))
        return self._call([call], list(outs), opts, None, lambda _: unflat(room, outs), (source, room))

    def allgather_coalesced(self, outputs: Any, inputs: Any, opts: Any = None) -> Any:
        """outputs[rank][i]: the i-th tensor of each rank."""
        source = flat(inputs)
        outs = [t for of_rank in outputs for t in of_rank]
        room = torch.empty(self.size() * source.numel(), dtype=source.dtype, device=source.device)
        count, dtype = bytes_of(source)
        return self._call([("covey_allgather", (source.data_ptr(), room.data_ptr(), count, dtype))], outs, opts, None,
                          lambda _: unflat(room, outs), (source, room))

    def gather(self, outputs: Any, inputs: Any, opts: Any, *rest) -> Any:
        source, root = _one(inputs).contiguous(), _root_of(opts)
        outs = list(outputs[0]) if self.rank() == root else []
        if self.rank() == root and (len(outs) != self.size() or any(t.numel() != source.numel() for t in outs)):
            raise ValueError(f"gather: the root needs {self.size()} outputs as large as the input")
        room = torch.empty(len(outs) * source.numel(), dtype=source.dtype, device=source.device)
        count, dtype = bytes_of(source)
        arguments = (source.data_ptr(), room.data_ptr() if outs else None, count, dtype, root)
        return self._call([("covey_gather", arguments)], outs or [source], opts, None,
                          (lambda _: unflat(room, outs)) if outs else None, (source, room))

    def gather_single(self, output: Any, source: torch.Tensor, opts: Any) -> Any:
        source, root = source.contiguous(), _root_of(opts)
        count, dtype = bytes_of(source)
        mine = self.rank() == root
        if mine:
            _alike(source, output)
            self._blocks(dense(output, "the output"), source.numel(), "the output")
        arguments = (source.data_ptr(), output.data_ptr() if mine else None, count, dtype, root)
        return self._call([("covey_gather", arguments)], [output if mine else source], opts, kept=source)

    def scatter(self, outputs: Any, inputs: Any, opts: Any, *rest) -> Any:
        out, root = dense(_one(outputs), "the output"), _root_of(opts)
        source = None
        if self.rank() == root:
            if len(inputs[0]) != self.size() or any(t.numel() != out.numel() for t in inputs[0]):
                raise ValueError(f"scatter: the root needs {self.size()} inputs as large as the output")
            source = flat(inputs[0])
        count, dtype = bytes_of(out)
        arguments = (source.data_ptr() if source is not None else None, out.data_ptr(), count, dtype, root)
        return self._call([("covey_scatter", arguments)], [out], opts, kept=source)

    def alltoall_base(self, output: torch.Tensor, source: torch.Tensor, output_splits: Any = None,
                      input_splits: Any = None, opts: Any = None, *rest) -> Any:
        source = source.contiguous()
        _alike(source, dense(output, "the output"))
        if not output_splits and not input_splits:
            if source.numel() % self.size() or output.numel() != source.numel():
                raise ValueError(f"alltoall: input and output need {self.size()} blocks of the same size")
            count, dtype = bytes_of(source)
            return self._call([("covey_alltoall", (source.data_ptr(), output.data_ptr(), count // self.size(), dtype))],
                              [output], opts, kept=source)
        sent, got = self._rows(source, input_splits, "input"), self._rows(output, output_splits, "output")
        return self._alltoallv(source, sent, output, got, opts, None)

    def _rows(self, tensor: torch.Tensor, splits: Any, what: str) -> List[int]:
        """Elements of covey for each rank: @splits count rows; none: as many for each."""
        rows = tensor.shape[0] if tensor.dim() else 0
        splits = list(splits) if splits else [rows // self.size()] * self.size()
        if len(splits) != self.size() or sum(splits) != rows:
            raise ValueError(f"{what}_split_sizes {splits}: {self.size()} numbers whose sum is {rows} are needed")
        count = bytes_of(tensor)[0]
        return [n * (count // rows if rows else 0) for n in splits]

    def _alltoallv(self, source, sent, output, got, opts, after, results=None) -> Any:
        arguments = (source.data_ptr(), *_places(sent), output.data_ptr(), *_places(got), bytes_of(source)[1])
        return self._call([("covey_alltoallv", arguments)], results or [output], opts, None, after, (source, output))

    def alltoall(self, outputs: Any, inputs: Any, opts: Any = None, *rest) -> Any:
        if len(outputs) != self.size() or len(inputs) != self.size():
            raise ValueError(f"alltoall: {self.size()} outputs and inputs are needed")
        source = flat(inputs)
        room = torch.empty(sum(t.numel() for t in outputs), dtype=source.dtype, device=source.device)
        return self._alltoallv(source, [bytes_of(t)[0] for t in inputs], room, [bytes_of(t)[0] for t in outputs], opts,
                               lambda _: unflat(room, outputs), list(outputs))

    def barrier(self, opts: Any = None, timeout: Any = None) -> Any:
        """Of a group with a device: behind what is on its current stream, and the host waits."""
        if self._cuda is None:
            return self._host([("covey_barrier", ())], [], opts)
        work = self._device([("covey_barrier", ())], [torch.empty(0, device=self._cuda)], None)
        if not torch.cuda.is_current_stream_capturing():
            self._judge()
        return work

    def monitored_barrier(self, timeout: Optional[timedelta] = None, wait_all_ranks: bool = False) -> None:
        """A barrier on the host that names the ranks that do not come: to rank 0, and that one to all.

        Args:
            timeout: None: the group's
            wait_all_ranks: name all missing ranks, not the lowest alone

        Raises:
            TimeoutError: on rank 0 with the missing ranks; on others if rank 0 does not confirm
        """
        self._rounds += 1
        seconds = timeout.total_seconds() if timeout else self._timeout_s
        until = None if seconds is None else time.monotonic() + seconds
        others = sorted(self.covey.view().members - {self.rank()})
        with errors_of_torch():
            if self.rank() == 0:
                missing = [r for r in others if not self._came(r, until)]
                if missing:
                    missing = missing if wait_all_ranks else missing[:1]
                    raise _timed_out(f"monitored barrier: ranks {missing} did not come within {seconds} s", missing[0])
                for r in others:
                    self._tell(r)
            else:
                self._tell(0)
                if not self._came(0, until):
                    raise _timed_out(f"monitored barrier: rank 0 did not confirm it within {seconds} s", 0)

    def _tell(self, peer: int) -> None:
        self.covey.send(_number(self._rounds), peer, _MONITOR_TAG)

    def _came(self, peer: int, until: Optional[float]) -> bool:
        """Has @peer come to this barrier? What it said at one before, that timed out here, does not count."""
        while True:
            room, work = self._awaited.pop(peer, (None, None))
            if work is None:
                room = _number(0)
                work = self.covey.recv_start(room, peer, _MONITOR_TAG)
            try:
                work.wait(None if until is None else max(0.0, until - time.monotonic()))
            except TimeoutError:
                self._awaited[peer] = room, work
                return False
            if int(room[0]) >= self._rounds:
                return True

    # ---- messages ----

    def send(self, tensors: Any, peer: int, tag: int = 0) -> Any:
        return self._message("covey_send", _one(tensors).contiguous(), peer, tag)

    def recv(self, tensors: Any, peer: int, tag: int = 0) -> Any:
        return self._message("covey_recv", dense(_one(tensors), "the tensor"), peer, tag)

    def _message(self, name: str, t: torch.Tensor, peer: int, tag: int) -> Any:
        count, dtype = bytes_of(t)
        arguments = (t.data_ptr(), count, dtype, peer, max(tag, 0))
        if not t.is_cuda:
            return self._host([(name, arguments)], [t], None)
        work = _MessageWork(self, t)
        self._messages.append((name, arguments, work, torch.cuda.current_stream(t.device)))
        return self._batched(work)

    def recv_anysource(self, tensors: Any, tag: int = 0) -> Any:
        raise NotImplementedError("covey receives from a named rank: give recv() a source")

    def _flush(self) -> None:
        """Launches the messages on devices together: sends and receives of a batch wait for each other."""
        if not self._messages:
            return
        messages, self._messages = self._messages, []
        stream = self._stream_for(messages[0][2].tensor.device, True, torch.cuda.is_current_stream_capturing())
        for _, _, _, asked_on in messages:
            stream.wait_stream(asked_on)
        try:
            with errors_of_torch():
                check_code(lib.covey_group_start())
                try:
                    self._launch([m[:2] for m in messages], stream)
                finally:
                    code = lib.covey_group_end()
                check_code(code, self.covey._handle)
        except Exception as error:
            for _, _, work, _ in messages:
                work.error = error
            raise
        for _, _, work, _ in messages:
            work.launched(stream)

    # ---- batches ----

    def _start_coalescing(self, device: Any = None) -> None:
        self._batch = []

    def _end_coalescing(self, device: Any = None) -> Any:
        works, self._batch = self._batch or [], None
        self._flush()
        return _Batch(works)

    startCoalescing, endCoalescing = _start_coalescing, _end_coalescing

    # ---- groups of groups ----

    def split_group(self, ranks: Sequence[int], timeout: Optional[timedelta] = None, opts: Any = None,
                    group_name: Optional[str] = None, group_desc: Optional[str] = None) -> Any:
        """A group of @ranks of this one. Every rank of them calls it; None: this rank is not among them."""
        if self.rank() not in ranks:
            return None
        ranks = sorted(ranks)
        self._splits += 1
        options = copy.copy(Options.of(opts) if opts else self.options_of_covey)
        options.group, options.is_extension = None, False
        seconds = timeout.total_seconds() if timeout else self._timeout_s
        group = self._make(options, ranks.index(self.rank()), len(ranks),
                           group_name or f"{self._name}.{self._splits}." + "-".join(map(str, ranks)))
        split = ProcessGroup(group, seconds, options, self._store, make=self._make)
        split._set_group_name(group_name or "")
        split._set_group_desc(group_desc or "split")
        return split

    @property
    def options(self) -> Options:
        return self.options_of_covey

    # ---- names since torch 2.14 ----

    all_gather_single = _allgather_base
    all_gather_single_coalesced = allgather_into_tensor_coalesced
    reduce_scatter_single = _reduce_scatter_base
    reduce_scatter_single_coalesced = reduce_scatter_tensor_coalesced
    all_to_all_single = alltoall_base

    # ---- members ----

    def _begin_again(self, outcome: Outcome) -> None:
        """After a safe point: what is counted and looked at begins anew, alike on old and new ranks."""
        self._admitted_ranks = outcome.ranks
        self._error = self._last = self._last_address = None
        self._collectives = 0
        self._rounds = outcome.epoch << 32  # more than before, and the same on newcomers
        if self._look:
            self._look.forget()
        self._refresh_active()

    def active_ranks(self) -> torch.Tensor:
        """int32 [max_ranks]: 1 for members of the last view that this rank has learned."""
        active, view = torch.zeros(self.covey.max_ranks, dtype=torch.int32), self.covey.view()
        active[sorted(view.members | (view.pending & self._admitted_ranks))] = 1
        return active

    def _set_active(self, target: Optional[torch.Tensor]) -> None:
        """@target is kept as the members, on whatever device it is; None: nothing is.

        Operations on the host write their contributors, which are the same on all ranks; those on devices write what
        this rank has learned when they are launched.
        """
        self._active, self._active_known = target, None
        self._refresh_active(self.active_ranks())

    def _refresh_active(self, active: Optional[torch.Tensor] = None) -> None:
        if self._active is None:
            return
        if active is None:
            active = self.active_ranks()
        if self._active_known is not None and torch.equal(active, self._active_known):
            return
        self._active_known = active
        n = min(len(active), self._active.numel())
        self._active.view(-1)[:n].copy_(active[:n])


class _DeviceWords:
    """Four int64 in device memory, for torch."""

    def __init__(self, address: int):
        self.__cuda_array_interface__ = {"shape": (4,), "typestr": "<i8", "data": (address, False), "version": 3}


class _Look:
    """A look at an outcome that is under way: copied behind the operations on a stream, and read a while later."""

    def __init__(self, words: torch.Tensor):
        self._words = words
        self._copy = torch.zeros(4, dtype=torch.int64, pin_memory=True)
        self._event = torch.cuda.Event()
        self._begun = False

    def begin(self, stream: Any) -> None:
        with torch.cuda.stream(stream):
            self._copy.copy_(self._words, non_blocking=True)
        self._event.record(stream)
        self._begun = True

    def forget(self) -> None:
        self._begun = False

    def missing(self, ranks: frozenset) -> frozenset:
        """Those of @ranks that did not contribute: the same on all ranks."""
        if not self._begun:
            return frozenset()
        self._event.synchronize()
        mask = int(self._copy[2])
        return frozenset(r for r in ranks if not mask >> r & 1)


class _MessageWork(DeviceWork):
    """A message on a device. It is launched with others, at the latest when somebody waits for it."""

    def __init__(self, group: ProcessGroup, tensor: torch.Tensor):
        torch.distributed.Work.__init__(self)
        self._group, self._stream, self._results, self._number, self._event = group, None, [tensor], -1, None
        self._kept = None
        self.tensor, self.error = tensor, None

    def launched(self, stream: Any) -> None:
        self._stream, self._number, self._event = stream, self._group._launched, torch.cuda.Event()
        self._event.record(stream)
        if not torch.cuda.is_current_stream_capturing():
            self.tensor.record_stream(stream)

    def _begin(self) -> None:
        self._group._flush()
        if self.error:
            raise self.error

    def wait(self, timeout=None) -> bool:
        self._begin()
        return super().wait(timeout)

    def is_completed(self) -> bool:
        self._begin()
        return super().is_completed()

    def get_future(self) -> torch.futures.Future:
        self._begin()
        return super().get_future()


class _Batch(torch.distributed.Work):
    """Works that end together."""

    def __init__(self, works: List[Any]):
        super().__init__()
        self._works = works

    def wait(self, timeout=None) -> bool:
        for work in self._works:
            work.wait(*(() if timeout is None else (timeout,)))
        return True

    def is_completed(self) -> bool:
        return all(work.is_completed() for work in self._works)

    is_success = isCompleted = isSuccess = is_completed

    def result(self) -> List[torch.Tensor]:
        return [t for work in self._works for t in work.result()]

    def synchronize(self) -> None:
        self.wait()

    def get_future(self) -> torch.futures.Future:
        return torch.futures.collect_all([work.get_future() for work in self._works])


def _number(number: int) -> torch.Tensor:
    return torch.tensor([number], dtype=torch.int64)


def _timed_out(cause: str, rank: int) -> Exception:
    return CoveyTimeout(_TIMEOUT, cause, rank)


def _alike(source: torch.Tensor, output: torch.Tensor) -> None:
    if source.dtype != output.dtype or source.device != output.device:
        raise TypeError(f"the input is {source.dtype} on {source.device}, the output {output.dtype} on {output.device}: "
                        "both must be alike")


def _captures(stream: Any) -> bool:
    with torch.cuda.stream(stream):
        return torch.cuda.is_current_stream_capturing()


def _all(steps: List[Callable]) -> Optional[Callable]:
    """One function that does all @steps."""
    if not steps:
        return None

    def run(*arguments):
        for step in steps:
            step(*arguments)

    return run


def _places(counts: Sequence[int]) -> tuple:
    """Counts and displacements of blocks without gaps, as C has them."""
    kind, at, places = _SIZES * len(counts), 0, []
    for n in counts:
        places.append(at)
        at += n
    return kind(*counts), kind(*places)

# SPDX-License-Identifier: Apache-2.0
"""The process group "covey": torch's operations as calls of covey."""

import copy
import functools
import os
import sys
import time
from datetime import timedelta
from types import SimpleNamespace
from typing import Any, Callable, List, Optional, Sequence

import torch
from torch.distributed import AllreduceOptions, ReduceOp

from .. import _abi
from .._plain import empty, plain
from ._anysource import AnySourceWork
from ._counted import counted
from ._errors import errors_of_torch
from ._launch import Launcher, all_of
from ._options import Options
from ._sparse import sparse_allreduce
from ._tensors import REDUCED, bytes_of, dense, flat, overlap, places, reduction, unflat, whole
from ._work import Batch, HostWork, MessageWork

_modes = torch._C._len_torch_dispatch_stack
_SUM, _AVG = ReduceOp.SUM, ReduceOp.AVG
_SUMS = {known: (int(dtype), int(_abi.Redop.SUM)) for known, dtype in REDUCED.items()}
_AVERAGES = {known: (int(dtype), int(_abi.Redop.AVG)) for known, dtype in REDUCED.items()}


def _one(tensors: Any) -> torch.Tensor:
    if isinstance(tensors, torch.Tensor):
        return tensors
    if len(tensors) != 1:
        raise ValueError(f"{len(tensors)} tensors: a rank has one device, so one tensor is needed")
    return tensors[0]


def _op_of(opts: Any) -> Any:
    return ReduceOp.SUM if opts is None else getattr(opts, "reduceOp", opts)


def _root_of(opts: Any) -> int:
    return 0 if opts is None else opts if isinstance(opts, int) else opts.rootRank


def _named(*places: str) -> Callable:
    """A method whose arguments have torch's names, several for one place; a timeout becomes one of the options."""
    at = {name: i for i, names in enumerate(places) for name in names.split("|")}

    def decorate(function: Callable) -> Callable:
        @functools.wraps(function)
        def run(self: Any, *given: Any, **by_name: Any) -> Any:
            if _modes():
                with counted(function.__name__):
                    return run(self, *given, **by_name)
            if not by_name and len(given) <= at["opts"] + 1:
                return function(self, *given)
            values = [*given, *[None] * (len(places) - len(given))]
            for name, value in by_name.items():
                if name not in at:
                    raise TypeError(f"{function.__name__}() got an unexpected keyword argument {name!r}")
                values[at[name]] = value
            timeout = values.pop(at["timeout"]) if "timeout" in at and len(values) > at["timeout"] > at["opts"] else None
            if timeout is not None:
                opts = values[at["opts"]]
                values[at["opts"]] = SimpleNamespace(rootRank=_root_of(opts) if isinstance(opts, int) else 0,
                                                     reduceOp=_op_of(opts), timeout=timeout)
            return function(self, *values)

        return run

    return decorate


class ProcessGroup(Launcher):
    """torch's process group over a covey.Group, which is its attribute `covey`."""

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
        """Leaves and closes the group. Who only closes it may take along what others still lack.

        A call that is under way here, where a signal handler comes to this, would wait for itself: it ends, as by a death.
        """
        until = time.monotonic() + seconds
        try:
            if not self.covey._inside:
                self._flush()
                self.covey.leave(seconds)
        except Exception:  # it is closed all the same: the others see a death
            pass
        self.covey.close()
        self._finisher.end(max(until - time.monotonic(), 0))

    def __del__(self) -> None:
        """Nobody has it, and nobody called shutdown(): it leaves, if the others answer within a second."""
        group = getattr(self, "covey", None)
        if group and group._handle and group._pid == os.getpid() and not sys.is_finalizing():
            self._depart(1)

    # ---- reductions ----

    @_named("tensors|tensor", "opts|op", "timeout")
    def allreduce(self, tensors: Any, opts: Any = None) -> Any:
        t = tensors[0] if type(tensors) is list and len(tensors) == 1 else _one(tensors)
        if type(opts) is AllreduceOptions and not opts.asyncOp:
            op = opts.reduceOp
            plain = _SUMS.get(t.dtype) if op == _SUM else _AVERAGES.get(t.dtype) if op == _AVG else None
            if plain and t.is_contiguous():
                at = t.data_ptr()
                return self._call([("covey_allreduce", (at, at, t.numel(), *plain))], [t], opts)
        return self.allreduce_coalesced([t], opts)

    @_named("tensors", "opts")
    def allreduce_coalesced(self, tensors: Any, opts: Any = None) -> Any:
        given = [tensors] if isinstance(tensors, torch.Tensor) else list(tensors)
        if any(t.is_sparse for t in given):
            return sparse_allreduce(self, _one(given), opts)
        calls, befores, afters, tensors = [], [], [], given
        if overlap(given):  # each is reduced as it is now, and once
            tensors = [plain(torch.clone)(t) for t in given]
            afters.append(plain(lambda *_: [t.copy_(reduced) for t, reduced in zip(given, tensors)]))
        for t in tensors:
            how = reduction(_op_of(opts), t.dtype)
            whole(t, "the tensor")
            if how.scale is not None:
                befores.append(plain(lambda t=t, scale=how.scale: t.mul_(scale)))
            if how.fold:
                afters.append(self._fold(t, how.fold, calls))
            else:
                calls.append(("covey_allreduce", (t.data_ptr(), t.data_ptr(), t.numel() * how.per_element, how.dtype,
                                                  how.redop)))
        return self._call(calls, given, opts, all_of(befores), all_of(reversed(afters)), tensors)

    @plain
    def _fold(self, t: torch.Tensor, fold: Callable, calls: list) -> Callable:
        """A reduction that covey has not: blocks are gathered, and folded in the order of ranks."""
        if t.is_cuda:
            raise TypeError(f"on a device covey has no such reduction of {t.dtype}")
        t = t.as_strided((t.numel(),), (1,))  # as it lies in memory
        blocks = empty((self.size(), t.numel()), dtype=t.dtype)
        count, dtype = bytes_of(t)
        calls.append(("covey_allgather", (t.data_ptr(), blocks.data_ptr(), count, dtype)))
        index = len(calls) - 1

        @plain
        def after(outcomes):
            ranks = sorted(outcomes[index].ranks)
            t.copy_(blocks[ranks[0]])
            for r in ranks[1:]:
                fold(t, blocks[r], out=t)

        return after

    @_named("tensors|tensor", "opts|root", "op", "timeout")
    def reduce(self, tensors: Any, opts: Any = None, op: Any = None) -> Any:
        t, root = dense(_one(tensors), "the tensor"), _root_of(opts)
        how = reduction(op if op is not None else _op_of(opts), t.dtype)
        if how.fold:
            raise TypeError(f"reduce() of {t.dtype}: covey has no such reduction")
        at = t.data_ptr()
        arguments = (at, at if self.rank() == root else None, t.numel() * how.per_element, how.dtype, how.redop, root)
        before = plain(lambda: t.mul_(how.scale)) if how.scale is not None else None
        return self._call([("covey_reduce", arguments)], [t], opts, before)

    @_named("outputs", "inputs", "opts")
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
                scaled = plain(torch.empty_like)(source)
                befores.append(plain(lambda a=source, b=scaled, s=how.scale: torch.mul(a, s, out=b)))
                kept.append(source)
                source = scaled
            kept.append(source)
            calls.append(("covey_reduce_scatter", (source.data_ptr(), out.data_ptr(), out.numel() * how.per_element,
                                                   how.dtype, how.redop)))
        return self._call(calls, list(outputs), opts, all_of(befores), None, kept)

    @_named("outputTensor", "inputTensor", "opts")
    def _reduce_scatter_base(self, output: torch.Tensor, source: torch.Tensor, opts: Any = None) -> Any:
        return self.reduce_scatter_tensor_coalesced([output], [source], opts)

    @_named("output_tensors|output", "input_tensors|input", "opts|op", "timeout")
    def reduce_scatter(self, outputs: Any, inputs: Any, opts: Any = None) -> Any:
        out = _one(outputs)
        parts = inputs[0] if isinstance(inputs[0], (list, tuple)) else inputs
        if any(p.numel() != out.numel() for p in parts):
            raise ValueError("reduce_scatter: all inputs must be as large as the output")
        return self._reduce_scatter_base(out, flat(parts), opts)

    # ---- the rest of the collectives ----

    @_named("tensors|tensor", "opts|root", "timeout")
    def broadcast(self, tensors: Any, opts: Any = None) -> Any:
        t = whole(_one(tensors), "the tensor")
        count, dtype = bytes_of(t)
        return self._call([("covey_broadcast", (t.data_ptr(), t.data_ptr(), count, dtype, _root_of(opts)))], [t], opts)

    def _blocks(self, tensor: torch.Tensor, count: int, what: str) -> None:
        if tensor.numel() != count * self.size():
            raise ValueError(f"{what} has {tensor.numel()} elements: {self.size()} blocks of {count} are needed")

    @_named("outputs", "inputs", "opts")
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

    @_named("output", "input", "opts|timeout")
    def _allgather_base(self, output: torch.Tensor, source: torch.Tensor, opts: Any = None) -> Any:
        return self.allgather_into_tensor_coalesced([output], [source], opts)

    @_named("output_tensors", "input_tensors|input_tensor", "opts|timeout")
    def allgather(self, outputs: Any, inputs: Any, opts: Any = None) -> Any:
        outs = outputs[0] if isinstance(outputs[0], (list, tuple)) else outputs
        source = _one(inputs).contiguous()
        if len(outs) != self.size():
            raise ValueError(f"allgather: {len(outs)} outputs, the group's size is {self.size()}")
        for t in outs:
            _alike(source, t)
        room = empty(sum(t.numel() for t in outs), dtype=source.dtype, device=source.device)
        count, dtype = bytes_of(source)
        if all(t.numel() == source.numel() for t in outs):
            call = ("covey_allgather", (source.data_ptr(), room.data_ptr(), count, dtype))
        else:
            counts = [bytes_of(t)[0] for t in outs]
            call = ("covey_allgatherv", (source.data_ptr(), count, room.data_ptr(), *places(counts), dtype))
        return self._call([call], list(outs), opts, None, lambda _: unflat(room, outs), (source, room))

    @_named("output_lists", "input_list", "opts")
    def allgather_coalesced(self, outputs: Any, inputs: Any, opts: Any = None) -> Any:
        """outputs[rank][i]: the i-th tensor of each rank."""
        source = flat(inputs)
        outs = [t for of_rank in outputs for t in of_rank]
        if len(outputs) != self.size() or any([t.shape for t in of_rank] != [t.shape for t in inputs] for of_rank in outputs):
            raise ValueError(f"allgather_coalesced: {self.size()} lists with the shapes of the inputs are needed")
        for t in outs:
            _alike(source, t)
        room = empty(self.size() * source.numel(), dtype=source.dtype, device=source.device)
        count, dtype = bytes_of(source)
        return self._call([("covey_allgather", (source.data_ptr(), room.data_ptr(), count, dtype))], outs, opts, None,
                          lambda _: unflat(room, outs), (source, room))

    @_named("output_tensors", "input_tensors|input_tensor", "opts|root", "timeout")
    def gather(self, outputs: Any, inputs: Any, opts: Any = None) -> Any:
        source, root = _one(inputs).contiguous(), _root_of(opts)
        outs = outputs if self.rank() == root else []
        outs = list(outs[0]) if len(outs) and isinstance(outs[0], (list, tuple)) else list(outs)
        if self.rank() == root and (len(outs) != self.size() or any(t.numel() != source.numel() for t in outs)):
            raise ValueError(f"gather: the root needs {self.size()} outputs as large as the input")
        room = empty(len(outs) * source.numel(), dtype=source.dtype, device=source.device)
        count, dtype = bytes_of(source)
        arguments = (source.data_ptr(), room.data_ptr() if outs else None, count, dtype, root)
        return self._call([("covey_gather", arguments)], outs or [source], opts, None,
                          (lambda _: unflat(room, outs)) if outs else None, (source, room))

    @_named("output", "input", "opts|root")
    def gather_single(self, output: Any, source: torch.Tensor, opts: Any = None) -> Any:
        source, root = source.contiguous(), _root_of(opts)
        count, dtype = bytes_of(source)
        mine = self.rank() == root
        if mine:
            _alike(source, output)
            self._blocks(dense(output, "the output"), source.numel(), "the output")
        arguments = (source.data_ptr(), output.data_ptr() if mine else None, count, dtype, root)
        return self._call([("covey_gather", arguments)], [output if mine else source], opts, kept=source)

    @_named("output_tensors|output_tensor", "input_tensors", "opts|root", "timeout")
    def scatter(self, outputs: Any, inputs: Any, opts: Any = None) -> Any:
        out, root = dense(_one(outputs), "the output"), _root_of(opts)
        source = None
        if self.rank() == root:
            parts = inputs[0] if len(inputs) and isinstance(inputs[0], (list, tuple)) else inputs
            if len(parts) != self.size() or any(t.numel() != out.numel() for t in parts):
                raise ValueError(f"scatter: the root needs {self.size()} inputs as large as the output")
            source = flat(parts)
            _alike(source, out)
        count, dtype = bytes_of(out)
        arguments = (source.data_ptr() if source is not None else None, out.data_ptr(), count, dtype, root)
        return self._call([("covey_scatter", arguments)], [out], opts, kept=source)

    @_named("output", "input", "output_split_sizes", "input_split_sizes", "opts|timeout")
    def alltoall_base(self, output: torch.Tensor, source: torch.Tensor, output_splits: Any = None,
                      input_splits: Any = None, opts: Any = None) -> Any:
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
        arguments = (source.data_ptr(), *places(sent), output.data_ptr(), *places(got), bytes_of(source)[1])
        return self._call([("covey_alltoallv", arguments)], results or [output], opts, None, after, (source, output))

    @_named("output_tensors", "input_tensors", "opts")
    def alltoall(self, outputs: Any, inputs: Any, opts: Any = None) -> Any:
        if len(outputs) != self.size() or len(inputs) != self.size():
            raise ValueError(f"alltoall: {self.size()} outputs and inputs are needed")
        source = flat(inputs)
        room = empty(sum(t.numel() for t in outputs), dtype=source.dtype, device=source.device)
        return self._alltoallv(source, [bytes_of(t)[0] for t in inputs], room, [bytes_of(t)[0] for t in outputs], opts,
                               lambda _: unflat(room, outputs), list(outputs))

    @_named("opts|timeout")
    def barrier(self, opts: Any = None) -> Any:
        """Of a group with a device: behind what is on its current stream, and the host waits."""
        if self._cuda is None:
            return self._host([("covey_barrier", ())], [], opts)
        work = self._device([("covey_barrier", ())], [empty(0, device=self._cuda)], None)
        if not torch.cuda.is_current_stream_capturing():
            self._judge()
        return work

    def monitored_barrier(self, timeout: Optional[timedelta] = None, wait_all_ranks: bool = False) -> None:
        """A barrier on the host that names the ranks that do not come: to rank 0, and that one confirms to all.

        Args:
            timeout: None: the group's
            wait_all_ranks: name all missing ranks, not the lowest alone

        Raises:
            TimeoutError: on rank 0 with the missing ranks; on others if rank 0 does not confirm
        """
        self._monitor.barrier(timeout.total_seconds() if timeout else self._timeout_s, wait_all_ranks)

    # ---- messages ----

    def send(self, tensors: Any, dstRank: int, tag: int = 0) -> Any:
        return self._message("covey_send", _one(tensors).contiguous(), dstRank, tag)

    def recv(self, tensors: Any, srcRank: int, tag: int = 0) -> Any:
        t = dense(_one(tensors), "the tensor")
        if not t.is_cuda and self._anysource.has(srcRank, tag):
            return self._batched(AnySourceWork(self._anysource, t, [srcRank], tag, self._timeout_s))
        return self._message("covey_recv", t, srcRank, tag)

    def _message(self, name: str, t: torch.Tensor, peer: int, tag: int) -> Any:
        count, dtype = bytes_of(t)
        arguments = (t.data_ptr(), count, dtype, peer, max(tag, 0))
        if not t.is_cuda:
            return self._host([(name, arguments)], [t], None)
        work = MessageWork(self, t)
        self._messages.append((name, arguments, work, torch.cuda.current_stream(t.device)))
        return self._batched(work)

    def recv_anysource(self, tensors: Any, tag: int = 0) -> Any:
        t = dense(_one(tensors), "the tensor")
        if t.is_cuda:
            raise NotImplementedError("on devices covey receives from a named rank: give recv() a source")
        with errors_of_torch():
            peers = self._anysource.begin(t.numel() * t.element_size(), tag)
        return self._batched(AnySourceWork(self._anysource, t, peers, tag, self._timeout_s))

    # ---- batches ----

    def _start_coalescing(self, device: Any = None) -> None:
        self._batch = []

    def _end_coalescing(self, device: Any = None) -> Any:
        works, self._batch = self._batch or [], None
        self._flush()
        return Batch(works)

    startCoalescing, endCoalescing = _start_coalescing, _end_coalescing

    # ---- groups of groups ----

    def split_group(self, ranks: Sequence[int], timeout: Optional[timedelta] = None, opts: Any = None,
                    group_name: Optional[str] = None, group_desc: Optional[str] = None, device_types: Any = None) -> Any:
        """A group of @ranks of this one. Every rank of them calls it; None: this rank is not among them.

        Args:
            device_types: not read: a group serves the devices of this one
        """
        if self.rank() not in ranks:
            return None
        ranks = sorted(ranks)
        self._splits += 1
        options = copy.copy(Options.of(opts) if opts else self.options_of_covey)
        options.group, options.is_extension = None, False
        seconds = timeout.total_seconds() if timeout else self._timeout_s
        group = self._make(options, ranks.index(self.rank()), len(ranks),
                           group_name or f"{self._name}.{self._splits}." + "-".join(map(str, ranks)), seconds)
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


def _alike(source: torch.Tensor, output: torch.Tensor) -> None:
    if source.dtype != output.dtype or source.device != output.device:
        raise TypeError(f"the input is {source.dtype} on {source.device}, the output {output.dtype} on "
                        f"{output.device}: both must be alike")

# SPDX-License-Identifier: Apache-2.0
"""How operations of a process group are called: started on the host, launched on a device, and looked at.

An operation on the host is started, and its work waits for it. An operation on a device is launched: on the current
stream, or, with async_op, on a stream of the group that first waits for the current one. A group has its operations on
one stream at a time: when that changes, the new one waits for the last one.
"""

import ctypes
from datetime import timedelta
from typing import Any, Callable, Iterable, List, Optional, Sequence

import torch
from torch._C import _distributed_c10d
from torch.distributed import ProcessGroup as _Base

from .. import _abi
from .._library import lib
from .._plain import empty, plain, zeros
from ..errors import Error, PeerError
from ..group import grouped
from ..outcome import Outcome, Work
from ._anysource import AnySource
from ._errors import errors_of_torch, translated
from ._monitor import Monitor
from ._options import Options
from ._reconfigure import Reconfigurable
from ._work import DeviceWork, DoneWork, Finisher, HostWork

_TIMEOUT, _PEER = -3, -20
_UNIFORM = frozenset(["covey_allreduce", "covey_broadcast", "covey_allgather", "covey_allgatherv", "covey_barrier"])


def _timeout_of(opts: Any) -> Optional[float]:
    timeout = opts if isinstance(opts, timedelta) else getattr(opts, "timeout", None)
    seconds = timeout.total_seconds() if isinstance(timeout, timedelta) else 0
    return seconds if seconds > 0 else None


class _InCpp(_distributed_c10d.Backend):
    """What a group of C++ has for its device; no operation goes through it."""

    def getBackendName(self) -> str:
        return "covey"


class Launcher(_Base):
    """What a process group has and does below torch's operations; its covey.Group is `covey`."""

    _work_of = HostWork

    def __init__(self, group: Any, timeout: Optional[float], options: Options, store: Any = None,
                 reconfigurable: Optional[Reconfigurable] = None, farewell: Optional[Callable] = None,
                 make: Optional[Callable] = None):
        """@group: None: the first reconfigure() makes it, by @reconfigurable. @farewell(members): called at the end.

        @make(options, rank, size, name, timeout): joins a group of this job.
        """
        rank, size = group.rank if group else 0, group.size if group else 1
        super().__init__(rank, size)
        if hasattr(_distributed_c10d, "FlightRecorderHook"):  # torch hangs hooks on the backends of C++, since 2.15
            self._in_cpp = _InCpp(rank, size)
            super()._register_backend(torch.device("cpu"), self.BackendType.CUSTOM, self._in_cpp)
            super()._set_default_backend(self.BackendType.CUSTOM)
        self.options_of_covey = options
        self._timeout_s, self._store = timeout, store
        self._reconfigurable, self._farewell, self._make = reconfigurable, farewell, make
        self._cuda = None if options.device == "none" else torch.device("cuda", int(options.device))
        self._splits = 0
        self.where: dict = {}  # store and name of the covey group, where they are known
        self._name = self._description = ""
        self._attach(group)

    def _attach(self, group: Any) -> None:
        """Begins anew with @group."""
        self.covey = group
        founds = group is not None and not self.options_of_covey.is_extension
        self._admitted_epoch = 1 if founds else None  # that of the founders' view, whatever has become of it since
        self._admitted_ranks: frozenset = frozenset(range(group.size)) if founds else frozenset()
        self._error: Optional[BaseException] = None  # of the last operation on the host that failed, until admit()
        self._finisher = Finisher(group)
        self._monitor, self._anysource = Monitor(group), AnySource(group)
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

    # ---- how an operation is called ----

    def _host(self, calls: Sequence[tuple], results: List[torch.Tensor], opts: Any, after: Optional[Callable] = None,
              kept: Any = None) -> HostWork:
        """Starts operations on host memory: (name, arguments) each."""
        self._flush()
        if self._active is not None and calls[0][0] in _UNIFORM:
            after = all_of([*filter(None, [after]), self._write_contributors])
        with errors_of_torch():
            works = [self.covey._start(name, arguments, (results, kept), None) for name, arguments in calls]
        return self._batched(self._work_of(works, results, after, _timeout_of(opts) or self._timeout_s, self))

    def _write_contributors(self, outcomes: list) -> None:
        if outcomes[-1].seq < self._active_seq:  # works may be waited for in another order
            return
        self._active_seq = outcomes[-1].seq
        self._refresh_active(self._ones_at(outcomes[-1].ranks))

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
        if overlaps:
            for tensor in (*results, *(kept if isinstance(kept, (list, tuple)) else [kept])):
                if tensor is not None:
                    tensor.record_stream(stream)
        if not capturing and self.options_of_covey.on_loss == "fail":
            self._look_now_and_then(len(calls), stream)
        return self._batched(DeviceWork(self, stream, results, self._launched, overlaps, kept))

    def _launch(self, calls: Sequence[tuple], stream: Any) -> None:
        on, result = stream.cuda_stream or _abi.COVEY_STREAM_DEFAULT, ctypes.byref(self._result)
        with errors_of_torch():
            for name, arguments in calls:
                call = getattr(lib, name)
                self.covey._check(lambda group, call=call, rest=arguments: call(*rest, group, on, result))
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
        self._miss(*self._look.missing(self._admitted_ranks))
        self._look.begin(stream)

    @plain
    def _outcome_words(self) -> torch.Tensor:
        """The last outcome, where the device keeps it: struct covey_device_outcome as ten numbers of 64 bits."""
        at = ctypes.c_void_p()
        self.covey._check(lambda group: lib.covey_device_outcome_at(group, ctypes.byref(at)))
        return torch.as_tensor(DeviceMemory(at.value, *OUTCOME_WORDS), device=self._cuda)

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
        self._device([("covey_barrier", ())], [empty(0, device=self._cuda)], None)
        return self._judge()

    def _judge(self) -> Any:
        """The outcome of the last operation, waited for."""
        self._last.synchronize()
        with errors_of_torch():
            outcome = self.covey.device_result()
            if outcome.status:
                raise self.covey._error(outcome.status, outcome)
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
        if len(calls) == 1 and getattr(opts, "asyncOp", None) is False:
            work = self._quick(calls[0], results, opts, before, after, kept)
            if work:
                return work
        if results[0].is_cuda:
            return self._device(calls, results, opts, before, after, kept)
        if before:
            before()
        return self._host(calls, results, opts, after, kept)

    def _quick(self, call: tuple, results: List[torch.Tensor], opts: Any, before: Optional[Callable],
               after: Optional[Callable], kept: Any) -> Any:
        """One operation whose caller waits at once, with little of Python. None: only the long way will do."""
        if self._batch is not None or self._messages or self._active is not None:
            return None
        if results[0].is_cuda:
            return self._quick_on_device(call, results, before, after, kept)
        if before:
            before()
        try:
            outcome = self.covey._at_once(*call, (results, kept))
        except Error as error:
            raise translated(error) from None
        if isinstance(outcome, Work):  # it is waited for as any other
            return HostWork([outcome], results, after, _timeout_of(opts) or self._timeout_s, self)
        if outcome.status:
            self._error = translated(self.covey._error(outcome.status, outcome))
            raise self._error
        if after:
            after([outcome])
        return DoneWork(results, outcome)

    def _quick_on_device(self, call: tuple, results: List[torch.Tensor], before: Optional[Callable],
                         after: Optional[Callable], kept: Any) -> Any:
        """On the stream of the last operation, which is the current one, without a look at outcomes."""
        on = torch._C._cuda_getCurrentRawStream(results[0].device.index)
        if on != self._last_address or torch._C._cuda_isCurrentStreamCapturing():
            return None
        if self.options_of_covey.on_loss == "fail":
            if (self._collectives + 1) % self.options_of_covey.check_every == 0:
                return None
            self._collectives += 1
        if before:
            before()
        function, rest = getattr(lib, call[0]), (on or _abi.COVEY_STREAM_DEFAULT, ctypes.byref(self._result))
        code = self.covey._direct(lambda group: function(*call[1], group, *rest))
        if code:
            raise translated(self.covey._error(code))
        self._launched += 1
        if after:
            after(None)
        return DeviceWork(self, self._last, results, self._launched, False, kept)

    # ---- messages on devices ----

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
                with grouped(self.covey):
                    self._launch([m[:2] for m in messages], stream)
        except BaseException as error:
            for _, _, work, _ in messages:
                work.error = error
            raise
        for _, _, work, _ in messages:
            work.launched(stream)

    # ---- members ----

    def _begin_again(self, outcome: Outcome) -> None:
        """After a safe point: what is counted and looked at begins anew, alike on old and new ranks."""
        self._admitted_ranks = outcome.ranks
        self._error = self._last = self._last_address = None
        self._collectives = 0
        self._monitor.begin_again(outcome.epoch)
        if self._look:
            self._look.forget()
        self._refresh_active()

    def active_ranks(self) -> torch.Tensor:
        """int32 [max_ranks]: 1 for members of the last view that this rank has learned."""
        view = self.covey.view()
        return self._ones_at(view.members | (view.pending & self._admitted_ranks))

    @plain
    def _ones_at(self, ranks: frozenset) -> torch.Tensor:
        active = torch.zeros(self.covey.max_ranks, dtype=torch.int32, device="cpu")
        active[sorted(ranks)] = 1
        return active

    def _set_active(self, target: Optional[torch.Tensor]) -> None:
        """@target is kept as the members, on whatever device it is; None: nothing is.

        Operations on the host write their contributors, which are the same on all ranks; those on devices write what
        this rank has learned when they are launched.
        """
        self._active, self._active_known = target, None
        self._refresh_active(self.active_ranks())

    @plain
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


class DeviceMemory:
    """@count elements of @kind in device memory, for torch."""

    def __init__(self, address: int, count: int, kind: str):
        self.__cuda_array_interface__ = {"shape": (count,), "typestr": kind, "data": (address, False), "version": 3}


OUTCOME_WORDS = 10, "<i8"  # struct covey_device_outcome: status and epoch, number, mask, missing; three more of either


class _Look:
    """A look at an outcome that is under way: copied behind the operations on a stream, and read a while later."""

    def __init__(self, words: torch.Tensor):
        self._words = words
        self._copy = zeros(10, dtype=torch.int64, pin_memory=True)
        self._event = torch.cuda.Event()
        self._begun = False

    def begin(self, stream: Any) -> None:
        with torch.cuda.stream(stream):
            self._copy.copy_(self._words, non_blocking=True)
        self._event.record(stream)
        self._begun = True

    def forget(self) -> None:
        self._begun = False

    def missing(self, ranks: frozenset) -> tuple:
        """Those of @ranks that did not contribute, the same on all ranks; epoch and number of the operation."""
        if not self._begun:
            return frozenset(), 0, 0
        self._event.synchronize()
        words = self._copy.tolist()
        masks = [words[2], *words[4:7]]
        missing = frozenset(r for r in ranks if not masks[r // 64] >> r % 64 & 1)
        return missing, words[0] >> 32 & 0xffffffff, words[1]


def _captures(stream: Any) -> bool:
    with torch.cuda.stream(stream):
        return torch.cuda.is_current_stream_capturing()


def all_of(steps: Iterable[Callable]) -> Optional[Callable]:
    """One function that does all @steps."""
    steps = list(steps)
    if not steps:
        return None

    def run(*arguments):
        for step in steps:
            step(*arguments)

    return run

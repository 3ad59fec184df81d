# SPDX-License-Identifier: Apache-2.0
"""Works of the process group: those on host memory are decided with their operations, those on devices are launched."""

import atexit
import queue
import threading
import weakref
from typing import Any, Callable, FrozenSet, List, Optional

import torch
from torch.distributed import Work

from ..errors import Error
from ..outcome import SLICE_NS, Outcome
from ._errors import errors_of_torch, translated


_TIMEOUT = -3
IDLE_S = 5  # without work the thread of futures ends


_running: set = set()  # finishers that have a thread


class Finisher:
    """A thread that finishes works of a group for their futures, in their order.

    C++ runs the callbacks of a future, and ends the process if the interpreter takes the thread away meanwhile. So it
    ends with the group, and at the latest before the interpreter does.
    """

    def __init__(self, group: Any):
        self._group = weakref.ref(group) if group else lambda: None  # covey.Group
        self._queue: "queue.SimpleQueue" = queue.SimpleQueue()
        self._lock = threading.RLock()
        self._thread: Optional[threading.Thread] = None
        self._ended = False

    def put(self, work: "HostWork") -> None:
        with self._lock:
            if not self._ended:
                if not (self._thread and self._thread.is_alive()):
                    _running.add(self)
                    self._thread = threading.Thread(target=self._run, daemon=True, name="covey-futures")
                    self._thread.start()
                self._queue.put(work)
                return
        work._finish_future()

    def is_here(self) -> bool:
        """Is this its thread? What waits for a future here must finish it itself."""
        return threading.current_thread() is self._thread

    def _run(self) -> None:
        while True:
            work = None  # the last one may be all that keeps its group
            try:
                work = self._queue.get(timeout=IDLE_S)
            except queue.Empty:
                pass
            if work:
                work._finish_future()
                continue
            with self._lock:
                if self._queue.empty():
                    self._thread = None
                    _running.discard(self)
                    return

    def end(self, seconds: float) -> bool:
        """Finishes what has come, and then no more here. False: a callback takes longer than @seconds."""
        with self._lock:
            self._ended, thread = True, self._thread
            self._queue.put(None)
        if not thread or self.is_here():
            return True
        thread.join(seconds)
        return not thread.is_alive()

    def end_now(self) -> None:
        """What no rank has decided yet is aborted."""
        while not self.end(SLICE_NS / 1e9):
            group = self._group()
            if group and any(not work.test() for work in list(group._works)):
                group.abort()


@atexit.register
def _end_all() -> None:
    for finisher in list(_running):
        finisher.end_now()


class HostWork(Work):
    """One or more operations on host memory.

    Attributes, once it has been waited for:
        outcomes: of its operations
        ranks: contributors to all of them
        epoch: of the last one
    """

    def __init__(self, works: List[Any], results: List[torch.Tensor], after: Optional[Callable] = None,
                 timeout: Optional[float] = None, group: Any = None):
        super().__init__()
        self._works, self._results, self._after, self._timeout = works, results, after, timeout
        self._group = group  # the process group
        self._lock = threading.RLock()
        self._future: Any = None  # what the thread of futures sets, and what follows from it
        self._awaited = False  # by that thread
        self._error: Optional[BaseException] = None
        self._done = False
        self.outcomes: List[Outcome] = []

    ranks: FrozenSet[int] = property(
        lambda self: frozenset.intersection(*(o.ranks for o in self.outcomes)) if self.outcomes else frozenset())
    epoch: int = property(lambda self: self.outcomes[-1].epoch if self.outcomes else 0)

    def wait(self, timeout=None) -> bool:
        """Waits for all; raises what the first failed one raises."""
        seconds = timeout.total_seconds() if timeout is not None and timeout.total_seconds() > 0 else self._timeout
        with errors_of_torch():
            if not self._decided(lambda work: work._await(seconds)):
                raise self._group.covey._error(_TIMEOUT)
        if self._error:
            raise self._error
        return True

    def _decided(self, look: Callable) -> bool:
        """Are all decided, or one with an error? Then outputs are where they belong. @look(work): is this one?"""
        if not self._done:
            for work in self._works:
                if not look(work):
                    return False
                if work._outcome.status:
                    break
            self._finish()
        return True

    def _finish(self) -> None:
        with self._lock:
            if self._done:
                return
            self.outcomes, error = [], None
            try:
                for work in self._works:
                    self.outcomes.append(work.wait())
                if self._after:
                    self._after(self.outcomes)
            except Exception as failed:
                error = translated(failed) if isinstance(failed, Error) else failed
                if self._group is not None:
                    self._group._error = error
            self._error, self._after, self._done = error, None, True

    def is_completed(self) -> bool:
        return self._decided(lambda work: work.test())

    def is_success(self) -> bool:
        return self.is_completed() and self._error is None

    def exception(self):
        self.is_completed()
        return self._error

    def result(self) -> List[torch.Tensor]:
        return self._results

    def synchronize(self) -> None:
        self.wait()

    def get_future(self) -> torch.futures.Future:
        """Done when the work is, with the tensors received into. An error is a RuntimeError with its text, as in C++."""
        with self._lock:
            if not self._future:
                source = torch.futures.Future()
                self._future = source, source.then(lambda _: self._delivered())
        if not self._awaited:
            if self._group is None or self._group._finisher.is_here():
                self._finish_future()
            else:
                self._group._finisher.put(self)
            self._awaited = True
        return self._future[1]

    def _finish_future(self) -> None:
        try:
            self.wait()
        except Exception:  # it is kept
            pass
        if not self._future[0].done():
            self._future[0].set_result(None)

    def _delivered(self) -> List[torch.Tensor]:
        if not self._done:
            raise RuntimeError("the operation has timed out")
        if self._error:
            raise self._error
        return self._results

    def progress(self) -> str:
        """One line: what it waits for."""
        for work in self._works:
            if not work.test():
                return work.progress()
        return "decided"

    get_future_result = get_future
    isCompleted, isSuccess = is_completed, is_success


class DoneWork(Work):
    """An operation on host memory that was decided within its call."""

    def __init__(self, results: List[torch.Tensor], outcome: Outcome):
        super().__init__()
        self._results, self.outcomes = results, [outcome]

    ranks: FrozenSet[int] = property(lambda self: self.outcomes[0].ranks)
    epoch: int = property(lambda self: self.outcomes[0].epoch)

    def wait(self, timeout=None) -> bool:
        return True

    is_completed = is_success = isCompleted = isSuccess = synchronize = wait

    def exception(self):
        return None

    def result(self) -> List[torch.Tensor]:
        return self._results

    def get_future(self) -> torch.futures.Future:
        future = torch.futures.Future()
        future.set_result(self._results)
        return future


class DeviceWork(Work):
    """Operations that were launched on a stream. wait() makes the current stream wait for them, not the host."""

    def __init__(self, group: Any, stream: Any, results: List[torch.Tensor], number: int, overlaps: bool,
                 kept: Any = None):
        """@kept: tensors that the operations use, until a stream waits for them."""
        super().__init__()
        self._kept = kept
        self._group, self._stream, self._results, self._number = group, stream, results, number
        self._event = None
        if overlaps:
            self._event = torch.cuda.Event()
            self._event.record(stream)

    def wait(self, timeout=None) -> bool:
        self._group._flush()
        if self._event:
            torch.cuda.current_stream(self._stream.device).wait_event(self._event)
        self._kept = None
        if timeout is not None and timeout.total_seconds() > 0 and not torch.cuda.is_current_stream_capturing():
            torch.cuda.current_stream(self._stream.device).synchronize()
        return True

    def _passed(self) -> None:
        if self._event:
            self._event.synchronize()
        else:
            self._stream.synchronize()

    def outcome(self) -> Outcome:
        """Its outcome, when the device has passed it; the host waits. Only of the last operation of the group."""
        if self._number != self._group._launched:
            raise RuntimeError("a device keeps the outcome of the last operation, and others were launched since")
        self._passed()
        with errors_of_torch():
            return self._group.covey.device_result()

    ranks = property(lambda self: self.outcome().ranks)
    epoch = property(lambda self: self.outcome().epoch)

    def is_completed(self) -> bool:
        return self._event.query() if self._event else self._stream.query()

    def is_success(self) -> bool:
        return self.is_completed()

    def exception(self):
        return None

    def result(self) -> List[torch.Tensor]:
        return self._results

    def synchronize(self) -> None:
        self.wait()

    def block_current_stream(self) -> None:
        self.wait()

    def get_future(self) -> torch.futures.Future:
        """Done at once: who waits for it makes its stream wait."""
        future = torch.futures.Future(devices=[self._stream.device])
        with torch.cuda.stream(self._stream):
            future.set_result(self._results)
        return future

    get_future_result = get_future
    isCompleted, isSuccess = is_completed, is_success


class MessageWork(DeviceWork):
    """A message on a device. It is launched with others, at the latest when somebody waits for it."""

    def __init__(self, group: Any, tensor: torch.Tensor):
        Work.__init__(self)
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


class Batch(Work):
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


__all__ = ["Batch", "DeviceWork", "DoneWork", "Finisher", "HostWork", "MessageWork"]

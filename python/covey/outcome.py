# SPDX-License-Identifier: Apache-2.0
"""What comes back: sets of ranks, outcomes, views, events, and works under way."""

import ctypes
import threading
import time
from typing import Any, FrozenSet, Optional

from . import _abi
from ._library import lib
from .errors import check

SLICE_NS = 100_000_000  # of a wait, so that Python can run its signal handlers in between
_TIMEOUT, _AGAIN, _CLOSED, _ABORTED = -3, -4, -41, -42


def ranks_of(mask: "_abi.covey_mask") -> FrozenSet[int]:
    """The set as ranks."""
    bits = int.from_bytes(mask, "little")
    return frozenset([rank for rank, bit in enumerate(reversed(f"{bits:b}")) if bit == "1"])


def array_of(mask: "_abi.covey_mask", size: int):
    """The set as a numpy array of bool, [size]."""
    import numpy as np

    words = np.ctypeslib.as_array(mask.word)[: (size + 63) // 64].copy()
    return np.unpackbits(words.view(np.uint8), bitorder="little")[:size].astype(bool)


class Outcome:
    """The outcome of one operation: the same on all survivors, but for `ranks` of operations with a part for each.

    Attributes:
        status: 0 or COVEY_ERR_*
        epoch: the view in which it completed
        seq: its number
        size: the group's size for this operation
        ranks: contributors; of alltoall(v), dispatch and combine the sources whose part is here
        wait_ns: from the call to the outcome
        bytes, peer, tag: of a message
    """

    __slots__ = ("_raw", "_ranks", "state")

    def __init__(self, raw: Optional["_abi.covey_result"] = None):
        self._raw = raw if raw is not None else _abi.covey_result()
        self._ranks: Optional[FrozenSet[int]] = None
        self.state: Optional[bytes] = None  # of admit(): what the members gave

    status = property(lambda self: self._raw.status)
    epoch = property(lambda self: self._raw.epoch)
    seq = property(lambda self: self._raw.seq)
    size = property(lambda self: self._raw.size)
    wait_ns = property(lambda self: self._raw.wait_ns)
    bytes = property(lambda self: self._raw.bytes)
    peer = property(lambda self: self._raw.peer)
    tag = property(lambda self: self._raw.tag)

    @property
    def ranks(self) -> FrozenSet[int]:
        if self._ranks is None:
            self._ranks = ranks_of(self._raw.mask)
        return self._ranks

    def mask(self):
        """`ranks` as a numpy array of bool, [size]."""
        return array_of(self._raw.mask, self.size)

    def __repr__(self):
        return (f"Outcome(status={self.status}, epoch={self.epoch}, seq={self.seq}, size={self.size}, "
                f"ranks={sorted(self.ranks)})")


class View:
    """A set of ranks with its epoch.

    Attributes:
        epoch, size, max_ranks, rank, incarnation, base_seq, done_seq: as in struct covey_view
        active: False while a change is under way
        members, pending: ranks that are admitted; joiners that wait for admit()
    """

    epoch: int
    size: int
    max_ranks: int
    rank: int
    incarnation: int
    base_seq: int
    done_seq: int

    def __init__(self, raw: "_abi.covey_view"):
        for name in ("epoch", "size", "max_ranks", "rank", "incarnation", "base_seq", "done_seq"):
            setattr(self, name, getattr(raw, name))
        self.active = bool(raw.active)
        self.members = ranks_of(raw.members)
        self.pending = ranks_of(raw.pending)

    def __repr__(self):
        return f"View(epoch={self.epoch}, rank={self.rank}, size={self.size}, members={sorted(self.members)})"


class Event:
    """Something that happened to the group.

    Attributes:
        kind: EventKind
        rank: the rank concerned; None: none
        epoch, time_ns (of time.monotonic_ns), cause
        left, came: ranks
    """

    def __init__(self, raw: "_abi.covey_event"):
        self.kind = _abi.EventKind(raw.kind)
        self.rank = raw.rank if raw.rank >= 0 else None
        self.epoch, self.time_ns = raw.epoch, raw.time_ns
        self.cause = raw.cause.decode(errors="replace")
        self.left, self.came = ranks_of(raw.left), ranks_of(raw.came)

    def __repr__(self):
        return f"Event({self.kind.name}, rank={self.rank}, epoch={self.epoch}, cause={self.cause!r})"


def deadline_of(timeout: Optional[float]) -> Optional[int]:
    """Seconds from now as an absolute time; None: no deadline."""
    return None if timeout is None else time.monotonic_ns() + int(timeout * 1e9)


def wait_in_slices(call, deadline: Optional[int]) -> int:
    """Repeats @call(deadline_ns), which returns TIMEOUT at its deadline, until @deadline; between, signals are heard."""
    while True:
        until = time.monotonic_ns() + SLICE_NS
        last = deadline is not None and until >= deadline
        err = call(deadline if last else until)
        if err != _TIMEOUT or last:
            return err


class Work:
    """An operation or a request under way. Any thread may wait for it.

    Its buffers belong to the operation until it is decided: the work keeps them alive, and the group keeps the work.
    """

    def __init__(self, group: Any, buffers: Any = None, value: Any = None):
        self._handle = ctypes.c_void_p()  # of the C work; set by the call that starts it
        self._group = group
        self._buffers = buffers
        self._outcome: Optional[Outcome] = None
        self._lock = threading.RLock()  # held while C looks at the work, a slice at most
        self._looking = False  # a thread waits in C
        self.value = value  # of a collective: the array that is received into

    def _decided(self, err: int, raw: "_abi.covey_result") -> None:
        """With the lock held. A signal handler may have done it meanwhile."""
        outcome, none = Outcome(raw), ctypes.c_void_p()
        raw.status = err
        if self._outcome is None:
            handle, self._handle, self._outcome = self._handle, none, outcome
            lib.covey_work_free(handle)
        self._buffers = None
        self._group._works.discard(self)

    def _end(self) -> None:
        """The group ends: what is not decided now is aborted."""
        with self._lock:
            if self._outcome is None:
                raw = _abi.covey_result()
                err = lib.covey_work_test(self._handle, ctypes.byref(raw))
                self._decided(_ABORTED if err == _AGAIN else err or raw.status, raw)

    def test(self) -> bool:
        """Is it decided? Never waits, and raises nothing of the operation."""
        if self._outcome is None and not self._looking:
            with self._lock:
                raw = _abi.covey_result()
                pointer = ctypes.byref(raw)
                err = lib.covey_work_test(self._handle, pointer) if self._outcome is None else _AGAIN
                if err != _AGAIN:
                    self._decided(err or raw.status, raw)
        return self._outcome is not None

    def _look(self, until: int) -> int:
        """Waits until then; 0 if it is decided."""
        raw = _abi.covey_result()
        pointer = ctypes.byref(raw)
        with self._lock:
            try:
                self._looking = True
                if self._outcome is None:
                    err = self._group._direct(lambda _: lib.covey_work_wait(self._handle, until, pointer))
                    if err == _CLOSED:
                        with self._group._lock:  # close() aborts what is under way
                            self._end()
                    elif err == _TIMEOUT and raw.status != _TIMEOUT and self._outcome is None:
                        return err
                    else:
                        self._decided(err, raw)
            finally:
                self._looking = False
        return 0

    def _await(self, timeout: Optional[float] = None) -> bool:
        """Is it decided, after @timeout seconds at the latest?"""
        return not wait_in_slices(self._look, deadline_of(timeout))

    def wait(self, timeout: Optional[float] = None) -> Outcome:
        """Waits for the outcome.

        Raises:
            TimeoutError of covey: after @timeout seconds; the operation continues, and can be waited for again
            the exception of the outcome's status
            KeyboardInterrupt: the wait ends, the operation continues
        """
        if not self._await(timeout):
            raise self._group._error(_TIMEOUT)
        outcome = self._outcome
        assert outcome is not None  # the wait has ended with 0
        if outcome.status:
            raise self._group._error(outcome.status, outcome)
        return outcome

    def progress(self) -> str:
        """One line: what it waits for."""
        with self._lock:
            if self._outcome is not None:
                return "decided"
            text = ctypes.create_string_buffer(256)
            check(lib.covey_work_progress(self._handle, text, len(text)))
            return text.value.decode(errors="replace")

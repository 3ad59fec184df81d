# SPDX-License-Identifier: Apache-2.0
"""A member of a group: its life, its operations, and its requests."""

import ctypes
import os
import threading
import time
import weakref
from contextlib import contextmanager
from typing import Any, Iterable, Iterator, Optional, Union

from . import _abi
from ._abi import Dtype, OnLoss, Redop
from ._library import lib
from .buffers import Buffer, buffer, stream_of
from .errors import Error, check, error_of
from .outcome import SLICE_NS, Event, Outcome, View, Work, deadline_of

_AGAIN = -4
_MESSAGES = frozenset(["covey_send", "covey_recv"])  # their blocking calls have no slices
_calls = threading.local()  # .open: depth of grouped(); .kept: what their calls use

_TEXTS = frozenset(name for name, kind in _abi.covey_config._fields_ if kind is ctypes.c_char_p)
_ENUMS = {"create": _abi.Create, "admission": _abi.Admission, "transport": _abi.Transport, "late": _abi.Late,
          "device_memory": _abi.DeviceMemory}


def _enum(value: Any, enum) -> int:
    """A member of @enum by value or name, in any case."""
    if isinstance(value, str):
        try:
            return enum[value.upper().replace(",", "_")]
        except KeyError:
            raise ValueError(f"{value!r} is none of {', '.join(m.name.lower() for m in enum)}") from None
    return enum(value)


def _config(settings: dict) -> "_abi.covey_config":
    config = _abi.covey_config(size=ctypes.sizeof(_abi.covey_config), rank=_abi.COVEY_RANK_ANY)
    known = [name for name, _ in _abi.covey_config._fields_ if name != "size"]
    for name, value in settings.items():
        if name not in known:
            raise TypeError(f"join() has no setting {name!r}; there are {', '.join(known)}")
        if value is None:
            continue
        if name in _TEXTS:
            value = str(value).encode()
        elif name in _ENUMS:
            value = _enum(value, _ENUMS[name])
        setattr(config, name, value)
        if name not in _TEXTS and getattr(config, name) != value:  # C has taken the low bits
            raise ValueError(f"{name} is {value}: it does not fit")
    return config


def join(**settings: Any) -> "Group":
    """Becomes a member of a group, and returns when it is formed (founders) or connected (joiners).

    Args:
        settings: the fields of struct covey_config by name: store (a URL), group (a name), rank, world, create
            ("first" or "never"), transport, device, ... The environment has the others: COVEY_*, then
            the launcher's.

    A joiner's first operation is Group.admit().

    Raises:
        Error: the join failed; the cause names what was wrong and the missing ranks
        KeyboardInterrupt: the join is given up
    """
    return Group(_config(settings))


class Group:
    """A member of a group. Use it as a context: `with covey.join() as group:` leaves the group at the end.

    Arrays are numpy's, or have `__dlpack__` or `__cuda_array_interface__`. Arrays on a device need a group that was
    joined with a device; their calls launch kernels on @stream and return at once.

    Every collective raises an exception of covey.errors when its outcome is an error. `*_start` forms return a Work.

    Python hears a signal when a call has returned, and an exception may come there; a signal handler or a finalizer may
    run there, and close the group. So what a call of C makes has its owner before, and what ends is taken from its
    owner right before the call of C that ends it. Locks may be taken twice by one thread.
    """

    def __init__(self, config: "_abi.covey_config"):
        self._handle: Optional[ctypes.c_void_p] = ctypes.c_void_p()
        self._ending: Optional[ctypes.c_void_p] = None  # the handle, from close() until no call has it
        self._pid = os.getpid()
        self._lock = threading.RLock()  # of the handle's end, against works that begin
        self._idle = threading.Condition(self._lock)
        self._inside: dict = {}  # calls that have the handle: their threads; None: a close()
        self._works: set = set()  # those not decided
        self._started = 0  # works, in all
        self._eps: weakref.WeakSet = weakref.WeakSet()
        self._lost: list = []  # handles of Eps that nobody has any more, with what they have sent
        self._orphans: list = []  # buffers that operations may still use
        self._held: dict = {}  # those of calls under way
        self._room: Any = None  # of an admit() that timed out, which the next one continues
        try:
            self._join(config)
            view = self.view()
        except BaseException:
            self.close()
            raise
        self.rank: int = view.rank
        self.size: int = view.size  # of the last admit(): blocks of a collective
        self.max_ranks: int = view.max_ranks

    # ---- life ----

    def _join(self, config: "_abi.covey_config") -> None:
        check(lib.covey_join_start(ctypes.byref(config), ctypes.byref(self._handle)))
        err = -3
        while err:
            until = time.monotonic_ns() + SLICE_NS
            err = self._direct(lambda handle: lib.covey_join_wait(handle, until))
            if err and (err != -3 or time.monotonic_ns() < until):  # else the wait has timed out, and not the join
                raise self._error(err)
        self._check(lambda handle: lib.covey_set_slice(handle, SLICE_NS // 1_000_000))

    def __enter__(self) -> "Group":
        return self

    def __exit__(self, kind, value, trace) -> None:
        try:
            if kind is None and self._handle:
                self.leave()
        finally:
            self.close()

    def __del__(self):
        try:
            self.close()
        except BaseException:  # nobody comes here again
            self.close()
            raise

    def leave(self, timeout: Optional[float] = None) -> None:
        """Finishes what is queued, waits until no rank needs this one, and leaves the view.

        Args:
            timeout: seconds; None: 10
        """
        self._check(lambda handle: lib.covey_leave(handle, deadline_of(timeout) or 0))

    def abort(self) -> None:
        """Ends every present and later call with AbortedError; from any thread, and from a signal handler."""
        self._direct(lambda handle: lib.covey_abort(handle) or 0)

    def close(self) -> None:
        """Frees the handle; never waits for a peer. Peers see a death unless leave() came first.

        From any thread, and from a signal handler: the call that it interrupts raises AbortedError or ClosedError.
        """
        if not (getattr(self, "_handle", None) or getattr(self, "_ending", None)):
            return
        if os.getpid() != self._pid:  # a child has none of the threads, and maybe a lock that one of them held
            handle, self._handle, self._ending = self._handle or self._ending, None, None
            lib.covey_close(handle)
            return
        me = object()
        try:
            self._inside[me] = None
            self._end_calls()
        finally:
            self._inside.pop(me, None)
            self._free()

    def _end_calls(self) -> None:
        """No call gets the handle from here on, and those of other threads have returned."""
        with self._lock:
            if self._handle:
                self._ending, self._handle = self._handle, None
            sent = self._orphans or self._held or self._lost or any(ep._sent for ep in list(self._eps))
            if self._ending and (self._works or len(self._inside) > 1 or sent):
                lib.covey_abort(self._ending)  # decides what is under way, so its buffers are free
        mine = (None, threading.get_ident())  # this thread's own continue when the signal handler has returned
        with self._idle:
            while any(thread not in mine for thread in list(self._inside.values())):
                self._idle.wait(SLICE_NS / 1e9)
        for work in list(self._works):
            work._end()
            self._works.discard(work)

    def _free(self) -> None:
        """After close(), the last one who had the handle frees it."""
        with self._lock:
            self._idle.notify_all()
            if not self._ending or self._inside or self._works:
                return
            for ep in list(self._eps):
                ep._destroy()
            for lost in self._lost:
                ep, lost[0] = lost[0], None
                lib.covey_ep_destroy(ep)
            handle, self._ending = self._ending, None
            lib.covey_close(handle)
            self._orphans.clear()
            self._held.clear()
            self._lost.clear()

    def _direct(self, call) -> int:
        """call(handle) of C, with the handle kept until it has returned; CLOSED if there is none any more."""
        try:
            self._inside[call] = threading.get_ident()
            handle = self._handle
            return call(handle) if handle else -41
        finally:
            self._inside.pop(call, None)
            if self._ending:
                self._free()

    def _check(self, call) -> None:
        """_direct(), which raises what the call returns."""
        err = self._direct(call)
        if err:
            raise self._error(err)

    def _error(self, code: int, outcome: Optional[Outcome] = None) -> Error:
        """The exception of @code, with what the handle knows of it."""
        made: list = []
        self._direct(lambda handle: made.append(error_of(code, handle, outcome)) or 0)
        return made[0] if made else error_of(code, None, outcome)

    def view(self) -> View:
        """The last view that this rank has learned."""
        raw = _abi.covey_view()
        self._check(lambda handle: lib.covey_view(handle, ctypes.byref(raw)))
        return View(raw)

    def fileno(self) -> int:
        """A descriptor that is readable while an event waits: for select, poll, asyncio."""
        return self._direct(lambda handle: lib.covey_event_fd(handle))

    def events(self) -> Iterator[Event]:
        """Takes the events that wait, oldest first; never waits for one."""
        raw = _abi.covey_event()
        while True:
            err = self._direct(lambda handle: lib.covey_event_next(handle, ctypes.byref(raw)))
            if err == -4:
                return
            if err:
                raise self._error(err)
            yield Event(raw)

    # ---- growth and repair ----

    def admit(self, state: Optional[bytes] = None) -> Outcome:
        """The safe point: the only place where ranks are added. All ranks call it at the same place.

        Args:
            state: [0..4096] bytes, as many on all ranks: what a joiner gets. A joiner gives any bytes of that length.

        Returns:
            the outcome; its `state` has the bytes of the lowest member. `size` and `ranks` hold until the next admit().
        """
        return self._admit(state, lib.covey_admit)

    def admit_async(self, state: Optional[bytes] = None, stream: Any = None) -> Outcome:
        """admit() of a group with a device, which waits for no stream: launches before it run without the newcomers."""
        on = stream_of(stream, True)
        return self._admit(state, lambda handle, room, length, outcome: lib.covey_admit_async(handle, room, length, on,
                                                                                              outcome))

    def _admit(self, state: Optional[bytes], call) -> Outcome:
        given = bytes(state or b"")
        room = self._room or ctypes.create_string_buffer(given, max(len(given), 1))
        outcome = Outcome()
        err = self._interruptible(lambda handle: call(handle, room if given else None, len(given),
                                                      ctypes.byref(outcome._raw)))
        self._room = room if err == -3 else None
        if err:
            raise self._error(err)
        outcome.state = room.raw[: len(given)]
        self.size, self.rank = outcome.size, self.view().rank
        return outcome

    def _interruptible(self, call) -> int:
        """Runs a call that cannot wait in slices. In the main thread Ctrl-C aborts the handle, which ends the call."""
        if getattr(_calls, "open", 0) or threading.current_thread() is not threading.main_thread():
            return self._direct(call)
        result: list = []
        thread = threading.Thread(target=lambda: result.append(self._direct(call)), daemon=True)
        try:
            thread.start()
            thread.join()
        except BaseException:
            self.abort()
            while thread.is_alive():
                try:
                    thread.join()
                except KeyboardInterrupt:
                    pass
            raise
        return result[0] if result else -42

    def _request(self, name: str, *arguments) -> Work:
        function = getattr(lib, name)
        return self._begin(Work(self), lambda group, work: function(group, *arguments, work))

    def _begin(self, work: Work, call) -> Work:
        """Starts it. It is among the group's works before, so that an exception in between loses nothing."""
        self._started += 1
        if self._started % 64 == 0:  # who waits for none of its works does not keep them for ever
            for other in list(self._works):
                if other.test():
                    self._works.discard(other)
        place = ctypes.byref(work._handle)
        with self._lock:
            try:
                self._works.add(work)
                err = self._direct(lambda handle: call(handle, place))
            finally:
                if not work._handle:
                    self._works.discard(work)
        if err:
            raise self._error(err)
        return work

    def recover(self, ranks: Iterable[int]) -> Work:
        """Asks that joiners of @ranks may come in; decided when all are admitted."""
        ranks = list(ranks)
        return self._request("covey_recover", (ctypes.c_int * len(ranks))(*ranks), len(ranks))

    def extend(self, size: int) -> Work:
        """Asks that joiners of ranks from the present size to @size - 1 may come in."""
        return self._request("covey_extend", size)

    def retire(self, rank: int) -> Work:
        """Asks that a healthy rank leaves once no rank needs its data."""
        return self._request("covey_retire", rank)

    def evict(self, rank: int) -> Work:
        """Asks that a sick rank is left out at once."""
        return self._request("covey_evict", rank)

    def set_on_loss(self, on_loss: Union[OnLoss, str]) -> None:
        """"continue" (default): operations have fewer contributors after a death; "fail": they raise PeerError."""
        value = _enum(on_loss, OnLoss)
        self._check(lambda handle: lib.covey_set_on_loss(handle, value))

    def explain(self) -> str:
        """A table: which algorithm each operation takes at which size in the present view, and why."""
        text = ctypes.create_string_buffer(16384)
        self._check(lambda handle: lib.covey_explain(handle, text, len(text)))
        return text.value.decode()

    # ---- how operations are called ----

    def _start(self, name: str, arguments: tuple, kept: Any, value: Any) -> Work:
        function = getattr(lib, name + "_start")
        return self._begin(Work(self, kept, value), lambda group, work: function(*arguments, group, None, work))

    def _at_once(self, name: str, arguments: tuple, kept: Any) -> Union[Outcome, Work]:
        """A collective on host memory by one call of C: no signal comes in between. The work, if it takes a slice."""
        function, raw, work = getattr(lib, name), _abi.covey_result(), None
        place = ctypes.byref(raw)

        def call(group):
            return function(*arguments, group, None, place)

        self._held[call] = kept
        try:
            err = self._direct(call)
        finally:
            if raw.status == _AGAIN:
                work = self._begin(Work(self, kept), lambda group, at: lib.covey_work_resume(group, raw.seq, at))
            self._held.pop(call, None)
        if err and not raw.status:
            raise self._error(err)
        return work or Outcome(raw)

    def _run(self, name: str, arguments: tuple, kept: Any, on_device: bool, stream: Any) -> Outcome:
        """On a device: a launch. Within grouped(): a call whose outcome is filled in at the end. Else: a wait."""
        if not on_device and not getattr(_calls, "open", 0):
            if stream is not None:
                stream_of(stream, False)  # raises
            if name in _MESSAGES:
                return self._start(name, arguments, kept, None).wait()
            done = self._at_once(name, arguments, kept)
            if isinstance(done, Work):
                return done.wait()
            if done.status:
                raise self._error(done.status, done)
            return done
        outcome = Outcome()
        if getattr(_calls, "open", 0):
            _calls.kept.append((kept, outcome))
        on, function = stream_of(stream, on_device), getattr(lib, name)
        self._check(lambda handle: function(*arguments, handle, on, ctypes.byref(outcome._raw)))
        return outcome

    def _pair(self, send: Any, recv: Any):
        """Buffers of a call, None for None: alike in type and kind of memory."""
        s = buffer(send) if send is not None else None
        r = buffer(recv, writable=True) if recv is not None else None
        if s and r and (s.dtype != r.dtype or s.on_device != r.on_device):
            raise TypeError(f"send has {s.dtype.name.lower()}{' on a device' if s.on_device else ''}, recv has "
                            f"{r.dtype.name.lower()}{' on a device' if r.on_device else ''}: both must be alike")
        return s, r, recv

    def _collective(self, start: bool, name: str, s: Optional[Buffer], r: Optional[Buffer], recv: Any, arguments: tuple,
                    stream: Any):
        one = s or r
        arguments = (s.address if s else None, r.address if r else None, *arguments)
        if start:
            return self._start(name, arguments, (s, r), recv)
        return self._run(name, arguments, (s, r), one.on_device, stream)

    # ---- collectives ----

    def allreduce(self, send, recv=None, op: Union[Redop, str] = "sum", *, stream=None) -> Outcome:
        """recv[i] = @op over contributors of send[i].

        Args:
            send: [...]
            recv: [...] as many elements; None: in place, send
            op: "sum", "prod", "max", "min" or "avg" (over contributors)
        """
        return self._allreduce(False, send, recv, op, stream)

    def allreduce_start(self, send, recv=None, op: Union[Redop, str] = "sum") -> Work:
        """allreduce() as a Work; its `value` is the array received into."""
        return self._allreduce(True, send, recv, op, None)

    def _allreduce(self, start, send, recv, op, stream):
        s, r, recv = self._pair(send, send if recv is None else recv)
        _counts_alike(s, r)
        return self._collective(start, "covey_allreduce", s, r, recv, (s.count, s.dtype, _enum(op, Redop)), stream)

    def broadcast(self, array, root: int, *, stream=None) -> Outcome:
        """array = the root's array, [...] of as many elements on all ranks."""
        return self._broadcast(False, array, root, stream)

    def broadcast_start(self, array, root: int) -> Work:
        """broadcast() as a Work."""
        return self._broadcast(True, array, root, None)

    def _broadcast(self, start, array, root, stream):
        b = buffer(array, writable=self.rank != root)
        return self._collective(start, "covey_broadcast", b, b, array, (b.count, b.dtype, root), stream)

    def reduce(self, send, recv=None, op: Union[Redop, str] = "sum", root: int = 0, *, stream=None) -> Outcome:
        """recv on @root = @op over contributors of send; recv None on the root: in place."""
        return self._reduce(False, send, recv, op, root, stream)

    def reduce_start(self, send, recv=None, op: Union[Redop, str] = "sum", root: int = 0) -> Work:
        """reduce() as a Work."""
        return self._reduce(True, send, recv, op, root, None)

    def _reduce(self, start, send, recv, op, root, stream):
        if self.rank == root:
            s, r, recv = self._pair(send, send if recv is None else recv)
            _counts_alike(s, r)
        else:
            s, r, recv = buffer(send), None, None
        return self._collective(start, "covey_reduce", s, r, recv, (s.count, s.dtype, _enum(op, Redop), root), stream)

    def allgather(self, send, recv, *, stream=None) -> Outcome:
        """recv [size, ...]: block r is rank r's send [...]; that of a lost rank is zero."""
        return self._allgather(False, send, recv, stream)

    def allgather_start(self, send, recv) -> Work:
        """allgather() as a Work."""
        return self._allgather(True, send, recv, None)

    def _allgather(self, start, send, recv, stream):
        s, r, recv = self._pair(send, recv)
        self._blocks(r, _count(s, "send"), "recv")
        return self._collective(start, "covey_allgather", s, r, recv, (s.count, s.dtype), stream)

    def reduce_scatter(self, send, recv, op: Union[Redop, str] = "sum", *, stream=None) -> Outcome:
        """send [size, ...], recv [...]: @op over contributors of block `own rank`."""
        return self._reduce_scatter(False, send, recv, op, stream)

    def reduce_scatter_start(self, send, recv, op: Union[Redop, str] = "sum") -> Work:
        """reduce_scatter() as a Work."""
        return self._reduce_scatter(True, send, recv, op, None)

    def _reduce_scatter(self, start, send, recv, op, stream):
        s, r, recv = self._pair(send, recv)
        self._blocks(s, _count(r, "recv"), "send")
        return self._collective(start, "covey_reduce_scatter", s, r, recv, (r.count, r.dtype, _enum(op, Redop)), stream)

    def alltoall(self, send, recv=None, *, stream=None) -> Outcome:
        """send, recv [size, ...]: block r of recv is block `own rank` of rank r's send. recv None: in place."""
        return self._alltoall(False, send, recv, stream)

    def alltoall_start(self, send, recv=None) -> Work:
        """alltoall() as a Work."""
        return self._alltoall(True, send, recv, None)

    def _alltoall(self, start, send, recv, stream):
        s, r, recv = self._pair(send, send if recv is None else recv)
        _counts_alike(s, r)
        count, rest = divmod(s.count, self.size)
        if rest:
            raise ValueError(f"send has {s.count} elements, which is no multiple of the group's size {self.size}")
        return self._collective(start, "covey_alltoall", s, r, recv, (count, s.dtype), stream)

    def gather(self, send, recv=None, root: int = 0, *, stream=None) -> Outcome:
        """recv [size, ...] on @root: block r is rank r's send [...]; other ranks give None."""
        return self._gather(False, send, recv, root, stream)

    def gather_start(self, send, recv=None, root: int = 0) -> Work:
        """gather() as a Work."""
        return self._gather(True, send, recv, root, None)

    def _gather(self, start, send, recv, root, stream):
        s, r, recv = self._pair(send, recv if self.rank == root else None)
        count = _count(s, "send")
        if self.rank == root:
            self._blocks(r, count, "recv")
        return self._collective(start, "covey_gather", s, r, recv, (s.count, s.dtype, root), stream)

    def scatter(self, send, recv, root: int = 0, *, stream=None) -> Outcome:
        """recv [...] = block `own rank` of @root's send [size, ...]; other ranks give None for send."""
        return self._scatter(False, send, recv, root, stream)

    def scatter_start(self, send, recv, root: int = 0) -> Work:
        """scatter() as a Work."""
        return self._scatter(True, send, recv, root, None)

    def _scatter(self, start, send, recv, root, stream):
        s, r, recv = self._pair(send if self.rank == root else None, recv)
        count = _count(r, "recv")
        if self.rank == root:
            self._blocks(s, count, "send")
        return self._collective(start, "covey_scatter", s, r, recv, (r.count, r.dtype, root), stream)

    def alltoallv(self, send, sendcounts, recv, recvcounts, senddispls=None, recvdispls=None, *, stream=None) -> Outcome:
        """alltoall() with counts: rank r gets sendcounts[r] elements, and sends recvcounts[r].

        Args:
            sendcounts, recvcounts: [size], elements
            senddispls, recvdispls: [size], elements; None: blocks without gaps
        """
        return self._alltoallv(False, send, sendcounts, recv, recvcounts, senddispls, recvdispls, stream)

    def alltoallv_start(self, send, sendcounts, recv, recvcounts, senddispls=None, recvdispls=None) -> Work:
        """alltoallv() as a Work."""
        return self._alltoallv(True, send, sendcounts, recv, recvcounts, senddispls, recvdispls, None)

    def _alltoallv(self, start, send, sendcounts, recv, recvcounts, senddispls, recvdispls, stream):
        s, r, recv = self._pair(send, recv)
        sn, sd = self._counts(s, sendcounts, senddispls, "send")
        rn, rd = self._counts(r, recvcounts, recvdispls, "recv")
        arguments = (s.address, sn, sd, r.address, rn, rd, s.dtype)
        if start:
            return self._start("covey_alltoallv", arguments, (s, r), recv)
        return self._run("covey_alltoallv", arguments, (s, r), s.on_device, stream)

    def allgatherv(self, send, recv, recvcounts, recvdispls=None, *, stream=None) -> Outcome:
        """recv at recvdispls[r] = rank r's send, recvcounts[r] elements; None: blocks without gaps."""
        return self._allgatherv(False, send, recv, recvcounts, recvdispls, stream)

    def allgatherv_start(self, send, recv, recvcounts, recvdispls=None) -> Work:
        """allgatherv() as a Work."""
        return self._allgatherv(True, send, recv, recvcounts, recvdispls, None)

    def _allgatherv(self, start, send, recv, recvcounts, recvdispls, stream):
        s, r, recv = self._pair(send, recv)
        n, d = self._counts(r, recvcounts, recvdispls, "recv")
        arguments = (s.address, s.count, r.address, n, d, s.dtype)
        if start:
            return self._start("covey_allgatherv", arguments, (s, r), recv)
        return self._run("covey_allgatherv", arguments, (s, r), s.on_device, stream)

    def barrier(self, *, stream=None) -> Outcome:
        """Completes when every member of the view has called it. @stream: on the device, behind what is there."""
        return self._run("covey_barrier", (), None, stream is not None, stream)

    def barrier_start(self) -> Work:
        """barrier() as a Work."""
        return self._start("covey_barrier", (), None, None)

    # ---- messages ----

    def send(self, array, peer: int, tag: int = 0, *, stream=None) -> Outcome:
        """One message to @peer: [...]. Returns when @array is free again, which may be before it is received."""
        b = buffer(array)
        return self._run("covey_send", (b.address, b.count, b.dtype, peer, tag), b, b.on_device, stream)

    def send_start(self, array, peer: int, tag: int = 0) -> Work:
        """send() as a Work."""
        b = buffer(array)
        return self._start("covey_send", (b.address, b.count, b.dtype, peer, tag), b, array)

    def recv(self, array, peer: int, tag: int = _abi.COVEY_TAG_ANY, *, stream=None) -> Outcome:
        """The next message of @peer with @tag (default: any) into array [...]; outcome.bytes says how much came."""
        b = buffer(array, writable=True)
        return self._run("covey_recv", (b.address, b.count, b.dtype, peer, tag), b, b.on_device, stream)

    def recv_start(self, array, peer: int, tag: int = _abi.COVEY_TAG_ANY) -> Work:
        """recv() as a Work."""
        b = buffer(array, writable=True)
        return self._start("covey_recv", (b.address, b.count, b.dtype, peer, tag), b, array)

    def _recv_known(self, known: dict, key: Any, array, peer: int, tag: int) -> None:
        """recv_start(), with (array, work) in known[key] before it begins: a message that it takes is not lost."""
        b = buffer(array, writable=True)
        work = Work(self, b, array)
        try:
            known[key] = array, work
            self._begin(work, lambda group, place: lib.covey_recv_start(b.address, b.count, b.dtype, peer, tag, group,
                                                                        None, place))
        finally:
            if not work._handle and work._outcome is None:
                known.pop(key, None)

    # ---- devices and registered memory ----

    def device_result(self) -> Outcome:
        """The outcome of the last operation on the device, or of the first message that failed; wait for the stream first.

        It raises nothing of the operation: look at its `status`.
        """
        outcome = Outcome()
        self._check(lambda handle: lib.covey_device_result(handle, ctypes.byref(outcome._raw)))
        return outcome

    def empty(self, shape, dtype="float32"):
        """A numpy array in this member's window, which peers on this host read in place. Free it by free().

        It is not to be touched after close().
        """
        import numpy as np

        count, at = int(np.prod(shape)), ctypes.c_void_p()
        size = np.dtype(dtype).itemsize
        self._check(lambda handle: lib.covey_mem_alloc(handle, max(count * size, 1), ctypes.byref(at)))
        room = (ctypes.c_uint8 * (count * size)).from_address(at.value)
        return np.frombuffer(room, dtype=dtype).reshape(shape)

    def free(self, array) -> None:
        """Gives memory of empty() back; the array and its views are not to be used any more."""
        address = buffer(array).address
        self._check(lambda handle: lib.covey_mem_free(handle, address))

    # ---- arguments ----

    def _blocks(self, b: Buffer, count: int, what: str) -> None:
        if self._room:
            raise RuntimeError("admit() has timed out: call it again first")
        if b is None:
            raise ValueError(f"{what} is None: it needs {self.size} blocks of {count}")
        if b.count != count * self.size:
            raise ValueError(f"{what} has {b.count} elements: it needs {self.size} blocks of {count}, one for each rank "
                             f"below the group's size, {count * self.size} in all")

    def _counts(self, b: Optional[Buffer], counts, displs, what: str):
        if b is None:
            raise ValueError(f"{what} is None")
        counts = [int(n) for n in counts]
        if len(counts) != self.size:
            raise ValueError(f"{what}counts has {len(counts)} entries, the group's size is {self.size}")
        if displs is None:
            displs = [sum(counts[:r]) for r in range(self.size)]
        displs = [int(n) for n in displs]
        if len(displs) != self.size or min(counts + displs) < 0:
            raise ValueError(f"{what}displs needs {self.size} entries, and none is negative")
        end = max(n and d + n for n, d in zip(counts, displs))
        if end > b.count:
            raise ValueError(f"the blocks of {what} end at element {end}, and it has {b.count}")
        kind = ctypes.c_size_t * self.size
        return kind(*counts), kind(*displs)


def _count(b: Optional[Buffer], what: str) -> int:
    if b is None:
        raise ValueError(f"{what} is None")
    return b.count


def _counts_alike(s: Optional[Buffer], r: Optional[Buffer]) -> None:
    if s is None or r is None:
        raise ValueError(f"{'send' if s is None else 'recv'} is None")
    if s.count != r.count:
        raise ValueError(f"send has {s.count} elements and recv {r.count}: as many are needed")


@contextmanager
def grouped(group: Optional[Group] = None):
    """Calls of this thread in the context are one step: they are posted at once, and waited for at its end.

    Outcomes of the calls are filled in at the end. Ctrl-C is heard after it.

    Args:
        group: an error has the cause that this group knows
    """
    _calls.open = getattr(_calls, "open", 0) + 1
    if _calls.open == 1:
        _calls.kept = []
    err = 0
    try:
        err = lib.covey_group_start()
        check(err)
        yield
    finally:
        try:
            if not err:
                err = lib.covey_group_end()
        finally:
            _calls.open -= 1
            if not _calls.open:
                _calls.kept = []
    if err:
        raise group._error(err) if group else error_of(err)


__all__ = ["Dtype", "Error", "Group", "OnLoss", "Redop", "grouped", "join"]

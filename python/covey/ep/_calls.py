# SPDX-License-Identifier: Apache-2.0
"""Dispatch and combine on tensors: outputs are made here, and the addresses go to the library.

On host memory a call ends before it returns, unless its caller asked for a hook: then the hook receives. On a device a
call launches: on the current stream, or on a stream of the buffer where its caller asked for an event.
"""

import contextlib
import ctypes
import math
from typing import Any, Callable, Dict, Iterable, Iterator, Optional

import torch
from torch import _C

from .. import _abi
from .._library import lib
from ..errors import Error
from ..outcome import Outcome
from ._event import EventHandle
from ._members import COMPACT, E4M3, FLOAT16, Members, Shape

_DTYPES = {torch.bfloat16: 0, torch.float16: FLOAT16}
GROUP = 128  # elements of one scale
_ALIGNED = 128  # bytes: where outputs begin
_DISPATCH_SIZE, _COMBINE_SIZE = ctypes.sizeof(_abi.covey_dispatch_args), ctypes.sizeof(_abi.covey_combine_args)


def kind_of(x: torch.Tensor, e4m3: bool, compact: bool = False) -> int:
    """The kind of a shape. @x: elements that come back from the experts are of its type, or bf16 if it is in e4m3."""
    if x.dtype not in _DTYPES and x.dtype is not torch.float8_e4m3fn:
        raise TypeError(f"x is {x.dtype}: it must be bfloat16 or float16, or float8_e4m3fn with scales")
    return _DTYPES.get(x.dtype, 0) | (E4M3 if e4m3 else 0) | (COMPACT if compact else 0)


def of_torch(tensor: Any, name: str) -> torch.Tensor:
    """@tensor, if it is one."""
    if not isinstance(tensor, torch.Tensor):
        raise TypeError(f"{name} is {type(tensor).__name__}: it must be a tensor")
    return tensor


def number(value: Any, name: str, least: int, most: int) -> int:
    """@value, if it is a whole number from @least to @most."""
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise TypeError(f"{name} is {value!r}: it must be a whole number")
    if not least <= value <= most:
        raise ValueError(f"{name} is {value}: it must be from {least} to {most}")
    return int(value)


def matrix(tensor: Any, name: str, rows: Optional[int], columns: Optional[int], *dtypes: torch.dtype) -> torch.Tensor:
    """@tensor, if it is contiguous, [rows, columns] and of one of @dtypes. None: any number."""
    shape = of_torch(tensor, name).shape
    if len(shape) != 2 or rows not in (None, shape[0]) or columns not in (None, shape[1]):
        raise ValueError(f"{name} is {tuple(shape)}: it must be [{'n' if rows is None else rows}, "
                         f"{'any' if columns is None else columns}]")
    if dtypes and tensor.dtype not in dtypes:
        raise TypeError(f"{name} is {tensor.dtype}: it must be {' or '.join(str(d) for d in dtypes)}")
    if not tensor.is_contiguous():
        raise ValueError(f"{name} is not contiguous: make it so first, no copy is made silently")
    return tensor


class Layout:
    """Where the outputs of a dispatch stand in the rooms that are allocated for it.

    Rows and their scales have a room each. One is for counts, which are cleared or written whatever happens: a reader
    after a failure never finds what the memory had. One is for what a combine needs. Kept counts keep no rows.

    Attributes:
        rooms: what each is allocated as: sides and dtype
        parts: by name, of the first two rooms: room, first byte, bytes, dtype, shape; count is the first of all
        outputs, of_combine: what a dispatch writes, and what a combine reads of it: name, room, first byte
    """

    ZEROS, BESIDE, X, SCALES = range(4)

    def __init__(self, shape: Shape, ep: Any, size: int, tokens: bool, on_device: bool):
        compact, e4m3 = shape.kind & COMPACT, shape.kind & E4M3
        bins = () if compact else (shape.per_rank,)
        n, groups = size * shape.tokens, -(-shape.hidden // GROUP)
        self.dtype = torch.float16 if shape.kind & FLOAT16 else torch.bfloat16
        self.parts: Dict[str, tuple] = {}
        self._bytes = [0, 0]
        self._add("count", self.ZEROS, torch.int32, shape.per_rank)
        self._add("range", self.ZEROS, torch.int64, *bins, size)
        self._add("src_info", self.BESIDE, torch.int32, *bins, n)
        if compact:
            self._add("recv_experts", self.BESIDE, torch.int32, n, shape.top_k)
            self._add("recv_weights", self.BESIDE, torch.float32, n, shape.top_k)
        if tokens:
            self._add("expert_tokens", self.ZEROS, torch.int64, shape.per_rank)
        if on_device:
            self._add("route", self.BESIDE, torch.uint8, ep.route_bytes)
        self.rooms: list = [*((size // 4, torch.int32) for size in self._bytes),
                            ((*bins, n, shape.hidden), torch.float8_e4m3fn if e4m3 else self.dtype)]
        if e4m3:
            self.rooms.append(((n, groups) if compact else (*bins, groups, n), torch.float32))
        self.outputs = [(name, part[0], part[1]) for name, part in self.parts.items()]
        self.of_combine = [part for part in self.outputs if part[0] in ("count", "src_info", "range", "route")]
        self.outputs += [("packed_x", self.X, 0), ("packed_scales", self.SCALES, 0)][: len(self.rooms) - self.X]

    def _add(self, name: str, room: int, dtype: torch.dtype, *sides: int) -> None:
        size = math.prod(sides) * dtype.itemsize
        self.parts[name] = room, self._bytes[room], size, dtype, sides
        self._bytes[room] += -(-size // _ALIGNED) * _ALIGNED


class Rows:
    """What a dispatch leaves on this rank, and what the combine of its tokens needs: struct covey_dispatch_args.

    Its tensors are attributes by the names there; those of VIEWS are made when they are asked for. None: this dispatch
    has no such output.
    """

    VIEWS = frozenset(("src_info", "range", "recv_experts", "recv_weights", "expert_tokens", "route"))

    def __init__(self, shape: Shape, layout: Layout, device: torch.device, num_tokens: int):
        self.shape, self.layout, self.num_tokens, self.dtype = shape, layout, num_tokens, layout.dtype
        self.rooms = [torch.empty(sides, dtype=dtype, device=device) for sides, dtype in layout.rooms]
        self.packed_x = self.rooms[Layout.X]
        self.packed_scales = self.rooms[Layout.SCALES] if len(self.rooms) > Layout.SCALES else None
        self.count = self.rooms[Layout.ZEROS][: shape.per_rank]
        self.alone: Optional[Rows] = None  # those of the group of one, if this rank was alone
        self._at = [room.data_ptr() for room in self.rooms]

    def __getattr__(self, name: str) -> Optional[torch.Tensor]:
        if name not in Rows.VIEWS:
            raise AttributeError(name)
        tensor = None
        if name in self.layout.parts:
            room, first, size, dtype, sides = self.layout.parts[name]
            tensor = self.rooms[room].view(torch.uint8)[first:first + size].view(dtype).view(sides)
        setattr(self, name, tensor)
        return tensor

    def clear(self) -> None:
        """On the stream of the dispatch: on another one it could come after the dispatch has written there."""
        self.rooms[Layout.ZEROS].zero_()

    def point(self, args: Any, places: list) -> None:
        """Addresses of outputs in the fields of their names. @places: of the layout."""
        at = self._at
        for name, room, first in places:
            setattr(args, name, at[room] + first)


def _place(x: torch.Tensor) -> torch.device:
    """Where @x is, if covey can reach it."""
    if x.device.type not in ("cpu", "cuda"):
        raise TypeError(f"x is on {x.device}: it must be on the host or on a CUDA device")
    return x.device


def _point(args: Any, device: torch.device, tensors: dict) -> None:
    """Addresses of @tensors in the fields of their names. All must be on @device, which the library cannot see."""
    for name, tensor in tensors.items():
        if tensor is None:
            continue
        if tensor.device != device:
            name = "topk_idx" if name.startswith("experts") else name
            raise ValueError(f"{name} is on {tensor.device}, but x is on {device}: all tensors of a call must be on one")
        setattr(args, name, tensor.data_ptr())


def _ids(ids: torch.Tensor) -> str:
    """The field for @ids."""
    return "experts64" if ids.dtype is torch.int64 else "experts"


class Exchange:
    """One call that was sent and not received yet. Calling it receives; once is enough, if no signal interrupts it."""

    def __init__(self, receive: Callable[[], None], after: Optional[Callable[[], None]]):
        self._receive: Optional[Callable[[], None]] = receive
        self._after = after

    def __call__(self) -> None:
        try:
            if self._receive:
                self._receive()
        except Exception:
            self._receive = self._after = None
            raise
        self._receive = None
        after, self._after = self._after, None
        if after:
            after()


class Calls(Members):
    """Members that dispatch and combine."""

    def __init__(self, rank: int, capacity: int):
        super().__init__(rank, capacity)
        self._under_way: Optional[Exchange] = None
        self._own_stream: Any = None
        self._last: Any = None  # the stream of the last call
        self._result = _abi.covey_result()  # of launches
        self._layouts: Dict[tuple, Layout] = {}
        self._alone: Any = None  # for calls while all others are masked

    def admit(self, awaited: Iterable[int] = ()) -> None:
        self.finish()
        super().admit(awaited)

    def close(self, leaves: bool) -> None:
        alone, self._alone = self._alone, None
        if alone:
            alone.close()
        if leaves and self.group is not None and not self.group._inside:
            self.finish()
        super().close(leaves)

    def finish(self) -> None:
        """Receives what a caller has not: the operations of a group follow each other."""
        exchange = self._under_way
        if exchange:
            exchange()
        self._under_way = None

    def dispatch(self, shape: Shape, x: torch.Tensor, ids: torch.Tensor, *, weights: Optional[torch.Tensor] = None,
                 x_scales: Optional[torch.Tensor] = None, waited: Optional[torch.Tensor] = None,
                 active: Optional[torch.Tensor] = None, timeout_ms: int = 0, fill_tail: bool = False,
                 alignment: int = 0, tokens: bool = False, after: Optional[Callable] = None, **how: Any):
        """Sends @x to the ranks that own @ids.

        Args:
            active: as active_ranks of struct covey_dispatch_args; None: that of this buffer
            timeout_ms: as there
            tokens: expert_tokens are wanted, each rounded up to a multiple of @alignment
            after: after(rows) runs, or launches, when the rows are here
            how: as of _run()

        Returns:
            (rows, event or None, hook or None)
        """
        self.enter()
        device, n = _place(x), x.shape[0]
        if n > shape.tokens:
            raise ValueError(f"x has {n} tokens: the call says that a rank has at most {shape.tokens}")
        if self.alone() and active is None and not shape.kind & COMPACT:
            return self._by_myself().dispatch(shape, max(self.size, self.rank + 1), x, ids, weights, after, how)
        inputs = {"x": x, _ids(ids): ids, "active_ranks": self.active(device) if active is None else active,
                  "x_scales": x_scales, "weights": weights, "waited": waited}
        args = _abi.covey_dispatch_args(_DISPATCH_SIZE, n, timeout_ms, fill_tail=fill_tail, expert_alignment=alignment)
        _point(args, device, inputs)
        ep = self.pair(shape)
        rows = Rows(shape, self._layout(ep, shape, tokens, device), device, n)
        rows.point(args, rows.layout.outputs)
        event, hook = self._run("covey_dispatch", ep, args, device, (rows, inputs), after and (lambda: after(rows)),
                                before=rows.clear, **how)
        return rows, event, hook

    def combine(self, rows: Rows, y: torch.Tensor, ids: torch.Tensor, out: torch.Tensor, *,
                weights: Optional[torch.Tensor] = None, waited: Optional[torch.Tensor] = None,
                active: Optional[torch.Tensor] = None, timeout_ms: int = 0, shape: Optional[Shape] = None,
                bias: Optional[torch.Tensor] = None, after: Optional[Callable] = None, **how: Any):
        """Brings the experts' results @y back into @out.

        Args:
            rows: of the dispatch of these tokens
            shape: with host memory another than that of the dispatch, which differs in `hidden` alone
            bias: with host memory and rows of COMPACT: each sum begins with it

        Returns:
            (event or None, hook or None)
        """
        self.enter()
        if rows.alone:
            return self._by_myself().combine(rows, y, ids, out, weights, after, how)
        device = _place(y)
        inputs = {"y": y, "out": out, _ids(ids): ids, "active_ranks": self.active(device) if active is None else active,
                  "weights": weights, "waited": waited, "bias": bias}
        args = _abi.covey_combine_args(_COMBINE_SIZE, ids.shape[0], timeout_ms)
        _point(args, device, inputs)
        rows.point(args, rows.layout.of_combine)
        return self._run("covey_combine", self.pair(shape or rows.shape), args, device, (rows, inputs), after, **how)

    def _by_myself(self) -> Any:
        from ._alone import Alone

        if self._alone is None:
            self._alone = Alone(self, self._store)
        self.present = frozenset([self.rank])
        return self._alone

    def _layout(self, ep: Any, shape: Shape, tokens: bool, device: torch.device) -> Layout:
        key = shape, self.size, tokens, device.type
        layout = self._layouts.get(key)
        if layout is None:
            layout = self._layouts[key] = Layout(shape, ep, self.size, tokens, device.type == "cuda")
        return layout

    def _run(self, name: str, ep: Any, args: Any, device: torch.device, kept: Any, after: Optional[Callable], *,
             before: Optional[Callable] = None, hook: bool = False, event: bool = False, previous: Any = None):
        """Args: hook: the caller receives; event: on the buffer's own stream; previous: an event to wait for."""
        self.finish()
        if device.type == "cuda":
            return self._launch(name, ep, args, kept, before, after, device, hook, event, previous)
        if before:
            before()
        self._send(name, ep, args, kept, None, Exchange(lambda: self._received(ep), after))
        if hook:
            return None, self._under_way
        self.finish()
        return (EventHandle() if event else None), None

    def _send(self, name: str, ep: Any, args: Any, kept: Any, on: Optional[int], exchange: Exchange) -> None:
        self._under_way = exchange
        try:
            ep._send(getattr(lib, name + "_send"), getattr(lib, name + "_recv"), args, kept, on)
        except Error:
            self._under_way = None
            raise

    def _received(self, ep: Any) -> None:
        outcome = Outcome()
        err = ep._receive(outcome)
        if err:
            raise self.live._error(err)
        if outcome.seq:
            self.took_part(outcome.ranks)

    def barrier(self) -> None:
        """Of all members: on the current stream of the group's device; without one the host waits."""
        if self.alone():
            return
        self.enter()
        self.finish()
        if self.device.type == "cuda":
            self.live.barrier(stream=self._stream(self.device, False, None))
            self._launched = True
        else:
            self.took_part(self.live.barrier().ranks)

    # ---- on a device ----

    def _launch(self, name: str, ep: Any, args: Any, kept: Any, before: Optional[Callable], after: Optional[Callable],
                device: torch.device, hook: bool, event: bool, previous: Any):
        on, stream = _C._cuda_getCurrentRawStream(device.index), self._last
        if event and not hook or previous is not None or stream is None or on != stream.cuda_stream:
            stream = self._stream(device, event and not hook, previous)
            on = stream.cuda_stream
        self._launched = True
        if hook:  # else the kernel writes counts, also where it ends without an outcome
            _on_stream(stream, before)
            self._send(name, ep, args, kept, on or _abi.COVEY_STREAM_DEFAULT,
                       Exchange(lambda: self._launch_receive(ep, stream, after, kept), None))
            return None, self._under_way
        rest = ctypes.byref(args), on or _abi.COVEY_STREAM_DEFAULT, ctypes.byref(self._result)
        call = getattr(lib, name)
        self.live._check(lambda _: call(ep._live(), *rest))
        _on_stream(stream, after)
        if not event:
            return None, None
        _record(kept, stream)
        return EventHandle(stream), None

    def _launch_receive(self, ep: Any, stream: Any, after: Optional[Callable], kept: Any) -> None:
        """On the stream of the send; the current one waits for it."""
        err = ep._receive(Outcome(self._result))
        if err:
            raise self.live._error(err)
        _on_stream(stream, after)
        if _C._cuda_getCurrentRawStream(stream.device_index) != stream.cuda_stream:
            torch.cuda.current_stream(stream.device).wait_stream(stream)
            _record(kept, stream)

    @contextlib.contextmanager
    def beside(self, x: Any, event: bool, previous: Any) -> Iterator[Callable]:
        """A call whose results come with an event. Yields a function that gives such results to the current stream.

        With @previous all that the call makes is made on the buffer's stream, behind @previous alone: memory of the
        current stream may be in use there, and nothing that is launched there is waited for.

        Args:
            x: of the call; in e4m3 with its scales
        """
        device = getattr(x[0] if isinstance(x, tuple) else x, "device", None)
        if not event or device is None or device.type != "cuda":
            yield lambda *_: None
            return
        current, own = torch.cuda.current_stream(device), self.own_stream(device)
        if previous is not None:
            previous.before(own)
        with torch.cuda.stream(own if previous is not None else current):
            yield lambda *given: _keep(given, current)

    def behind(self, event: Optional[EventHandle], x: torch.Tensor, work: Callable) -> tuple:
        """work() behind the call with @x that gave @event. Returns (what it returns, the event behind it or None)."""
        if event is None or not x.is_cuda:
            return work(), event
        with torch.cuda.stream(self.own_stream()):
            return work(), EventHandle()

    def keep(self, *tensors: Optional[torch.Tensor]) -> None:
        """What a call with an event uses, apart from its arguments of C."""
        _keep([t for t in tensors if t is not None and t.is_cuda], self._own_stream)

    def own_stream(self, device: Optional[torch.device] = None) -> Any:
        if self._own_stream is None:
            self._own_stream = torch.cuda.Stream(device)
        return self._own_stream

    def _stream(self, device: torch.device, own: bool, previous: Any) -> Any:
        """A group has its operations on one stream at a time: when that changes, the new one waits for the last one."""
        stream = current = torch.cuda.current_stream(device)
        if own:
            stream = self.own_stream(device)
            if previous is None:
                stream.wait_stream(current)
        if previous is not None:
            previous.before(stream)
        if self._last is not None and self._last != stream and _captures(self._last) == _captures(stream):
            stream.wait_stream(self._last)
        self._last = stream
        return stream


def _on_stream(stream: Any, launches: Optional[Callable]) -> None:
    """What @launches launches is on @stream."""
    if launches is None:
        return
    if _C._cuda_getCurrentRawStream(stream.device_index) == stream.cuda_stream:
        launches()
    else:
        with torch.cuda.stream(stream):
            launches()


def _captures(stream: Any) -> bool:
    with torch.cuda.stream(stream):
        return torch.cuda.is_current_stream_capturing()


def _record(kept: Any, stream: Any) -> None:
    rows, inputs = kept
    _keep((*inputs.values(), *rows.rooms), stream)


def _keep(tensors: Iterable[Optional[torch.Tensor]], stream: Any) -> None:
    """Their memory is not given to others before @stream has passed."""
    for tensor in tensors:
        if tensor is not None:
            tensor.record_stream(stream)

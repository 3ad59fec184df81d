# SPDX-License-Identifier: Apache-2.0
"""Dispatch and combine on tensors: outputs are made here, and the addresses go to the library.

On host memory a call ends before it returns, unless its caller asked for a hook: then the hook receives. On a device a
call launches: on the current stream, or on a stream of the buffer where its caller asked for an event.
"""

import ctypes
from typing import Any, Callable, Iterable, Optional

import torch

from .. import _abi
from .._library import lib
from ..errors import Error
from ..outcome import Outcome
from ._event import EventHandle
from ._members import COMPACT, E4M3, FLOAT16, Members, Shape

_DTYPES = {torch.bfloat16: 0, torch.float16: FLOAT16}
_GROUP = 128  # elements of one scale


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
    shape = tuple(of_torch(tensor, name).shape)
    if len(shape) != 2 or rows not in (None, shape[0]) or columns not in (None, shape[1]):
        raise ValueError(f"{name} is {shape}: it must be [{'n' if rows is None else rows}, "
                         f"{'any' if columns is None else columns}]")
    if dtypes and tensor.dtype not in dtypes:
        raise TypeError(f"{name} is {tensor.dtype}: it must be {' or '.join(str(d) for d in dtypes)}")
    if not tensor.is_contiguous():
        raise ValueError(f"{name} is not contiguous: make it so first, no copy is made silently")
    return tensor


class Rows:
    """What a dispatch leaves on this rank, and what the combine of its tokens needs: struct covey_dispatch_args."""

    def __init__(self, shape: Shape, ep: Any, size: int, device: torch.device, num_tokens: int,
                 tokens: bool):
        bins = () if shape.kind & COMPACT else (shape.per_rank,)
        n, groups, on_device = size * shape.tokens, -(-shape.hidden // _GROUP), device.type == "cuda"

        def room(*sides, dtype):
            return torch.empty(sides, dtype=dtype, device=device)

        self.shape, self.num_tokens, self.outcome = shape, num_tokens, None
        self.dtype = torch.float16 if shape.kind & FLOAT16 else torch.bfloat16
        self.packed_x = room(*bins, n, shape.hidden, dtype=torch.float8_e4m3fn if shape.kind & E4M3 else self.dtype)
        self.packed_scales = self.recv_experts = self.recv_weights = self.route = self.expert_tokens = None
        if shape.kind & E4M3:
            sides = (n, groups) if shape.kind & COMPACT else (*bins, groups, n)
            self.packed_scales = room(*sides, dtype=torch.float32)
        self.count = torch.zeros(shape.per_rank, dtype=torch.int32, device=device)
        self.src_info = room(*bins, n, dtype=torch.int32)
        self.range = torch.zeros((*bins, size), dtype=torch.int64, device=device)
        if shape.kind & COMPACT:
            self.recv_experts = room(n, shape.top_k, dtype=torch.int32)
            self.recv_weights = room(n, shape.top_k, dtype=torch.float32)
        if tokens:
            self.expert_tokens = torch.zeros(shape.per_rank, dtype=torch.int64, device=device)
        if on_device:
            self.route = room(ep.route_bytes, dtype=torch.uint8)

    OUTPUTS = ("packed_x", "packed_scales", "count", "src_info", "range", "recv_experts", "recv_weights",
               "expert_tokens", "route")
    OF_COMBINE = ("count", "src_info", "range", "route")

    def point(self, args: Any, names: tuple) -> None:
        _point(args, {name: getattr(self, name) for name in names})


def _point(args: Any, tensors: dict) -> None:
    """Addresses of @tensors in the fields of their names."""
    for name, tensor in tensors.items():
        if tensor is not None:
            setattr(args, name, tensor.data_ptr())


def _inputs(device: torch.device, tensors: dict) -> dict:
    """@tensors, all of them on @device: the library takes addresses, and cannot see where they are."""
    if device.type not in ("cpu", "cuda"):
        raise TypeError(f"x is on {device}: it must be on the host or on a CUDA device")
    for name, tensor in tensors.items():
        if tensor is not None and tensor.device != device:
            name = "topk_idx" if name.startswith("experts") else name
            raise ValueError(f"{name} is on {tensor.device}, but x is on {device}: all tensors of a call must be on one")
    return tensors


def _ids(ids: torch.Tensor) -> dict:
    return {"experts64" if ids.dtype is torch.int64 else "experts": ids}


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

    def admit(self, awaited: Iterable[int] = ()) -> None:
        self.finish()
        super().admit(awaited)

    def close(self, leaves: bool) -> None:
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
        if len(x) > shape.tokens:
            raise ValueError(f"x has {len(x)} tokens: the call says that a rank has at most {shape.tokens}")
        inputs = _inputs(x.device, {"x": x, "x_scales": x_scales, "weights": weights, "waited": waited, **_ids(ids),
                                    "active_ranks": self.active(x.device) if active is None else active})
        ep = self.pair(shape)
        rows = Rows(shape, ep, self.size, x.device, len(x), tokens)
        args = _abi.covey_dispatch_args(size=ctypes.sizeof(_abi.covey_dispatch_args), num_tokens=len(x),
                                        timeout_ms=timeout_ms, fill_tail=int(fill_tail), expert_alignment=alignment)
        rows.point(args, Rows.OUTPUTS)
        _point(args, inputs)
        event, hook = self._run("covey_dispatch", ep, args, x.device, (rows, inputs), after and (lambda: after(rows)),
                                **how)
        return rows, event, hook

    def combine(self, rows: Rows, y: torch.Tensor, ids: torch.Tensor, out: torch.Tensor, *,
                weights: Optional[torch.Tensor] = None, waited: Optional[torch.Tensor] = None,
                active: Optional[torch.Tensor] = None, timeout_ms: int = 0, shape: Optional[Shape] = None,
                after: Optional[Callable] = None, **how: Any):
        """Brings the experts' results @y back into @out.

        Args:
            rows: of the dispatch of these tokens
            shape: with host memory another than that of the dispatch, which differs in `hidden` alone

        Returns:
            (event or None, hook or None)
        """
        self.enter()
        inputs = _inputs(y.device, {"y": y, "weights": weights, "out": out, "waited": waited, **_ids(ids),
                                    "active_ranks": self.active(y.device) if active is None else active})
        ep = self.pair(shape or rows.shape)
        args = _abi.covey_combine_args(size=ctypes.sizeof(_abi.covey_combine_args), num_tokens=len(ids),
                                       timeout_ms=timeout_ms)
        rows.point(args, Rows.OF_COMBINE)
        _point(args, inputs)
        return self._run("covey_combine", ep, args, y.device, (rows, inputs), after, **how)

    def _run(self, name: str, ep: Any, args: Any, device: torch.device, kept: Any, after: Optional[Callable], *,
             hook: bool = False, event: bool = False, previous: Any = None):
        """Args: hook: the caller receives; event: on the buffer's own stream; previous: an event to wait for."""
        self.finish()
        if device.type == "cuda":
            return self._launch(name, ep, args, kept, after, device, hook, event, previous)
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

    def barrier(self, device: Optional[torch.device] = None) -> None:
        """Of all members. @device: on its current stream, else the host waits."""
        self.enter()
        self.finish()
        if device is not None and device.type == "cuda":
            self.live.barrier(stream=self._stream(device, False, None))
            self._launched = True
        else:
            self.took_part(self.live.barrier().ranks)

    # ---- on a device ----

    def _launch(self, name: str, ep: Any, args: Any, kept: Any, after: Optional[Callable], device: torch.device,
                hook: bool, event: bool, previous: Any):
        stream = self._stream(device, event and not hook, previous)
        on = stream.cuda_stream or _abi.COVEY_STREAM_DEFAULT
        self._launched = True
        if hook:
            self._send(name, ep, args, kept, on, Exchange(lambda: self._launch_receive(ep, stream, after, kept), None))
            return None, self._under_way
        call, rest = getattr(lib, name), (ctypes.byref(args), on, ctypes.byref(self._result))
        self.live._check(lambda _: call(ep._live(), *rest))
        if after:
            with torch.cuda.stream(stream):
                after()
        if not event:
            return None, None
        _record(kept, stream)
        return EventHandle(stream), None

    def _launch_receive(self, ep: Any, stream: Any, after: Optional[Callable], kept: Any) -> None:
        """On the stream of the send; the current one waits for it."""
        err = ep._receive(Outcome(self._result))
        if err:
            raise self.live._error(err)
        with torch.cuda.stream(stream):
            if after:
                after()
        current = torch.cuda.current_stream(stream.device)
        if current != stream:
            current.wait_stream(stream)
            _record(kept, stream)

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


def _captures(stream: Any) -> bool:
    with torch.cuda.stream(stream):
        return torch.cuda.is_current_stream_capturing()


def _record(kept: Any, stream: Any) -> None:
    """Their memory is not given to others before @stream has passed."""
    rows, inputs = kept
    for tensor in (*inputs.values(), *(getattr(rows, name) for name in Rows.OUTPUTS)):
        if tensor is not None:
            tensor.record_stream(stream)

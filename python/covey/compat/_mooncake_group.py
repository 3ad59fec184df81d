# SPDX-License-Identifier: Apache-2.0
"""A process group of covey with two notions of Mooncake's: ranks that an operation expects, and a joiner that is alone.

Before join_group() a joiner's collectives are its own: each is a copy of its own block, and no rank is waited for.
"""

import ctypes
from typing import Any, Callable, List, Optional, Sequence

import torch

from .._plain import plain
from ..errors import PeerError
from ..torch import ProcessGroup
from ..torch._launch import DeviceMemory
from ..torch._tensors import REDUCED
from ..torch._work import HostWork

_BYTES = {dtype: known.itemsize for known, dtype in REDUCED.items()}
_MESSAGES = ("covey_send", "covey_recv")


class MooncakeWork(HostWork):
    """Operations on host memory.

    Attributes:
        expected: ranks without whose part they have not succeeded
        message: covey_send or covey_recv: if its peer is lost, it ends without an exception
        lost: those whose part is not there
    """

    expected: frozenset = frozenset()
    message: Optional[str] = None
    _lost: Optional[frozenset] = None

    @property
    def lost(self) -> frozenset:
        if self._lost is None and self.is_completed():
            self._lost = self._find_lost()  # what is told once stays so, also when the peer ends later
        return self._lost or frozenset()

    def _find_lost(self) -> frozenset:
        if self._error is not None:
            return self.expected if self.message else frozenset([self._error.rank]) - {None}
        if not self.message:
            return self.expected - self.ranks
        if self.message == "covey_recv":
            return frozenset()
        view = self._group.covey.view()
        return self.expected - view.members - view.pending  # what it had not received has died with it

    def succeeded(self) -> bool:
        return self.is_completed() and self._error is None and not self.lost

    def wait(self, timeout=None) -> bool:
        try:
            super().wait(timeout)
        except PeerError:
            if not self.message:
                raise
        if self._group.auto and not self.message:
            self._group.expected -= self.lost
        return True


class _Decided:
    """A copy that was made: it looks as a covey.Work whose outcome is there."""

    status, epoch, seq = 0, 0, 0

    def __init__(self, rank: int, size: int):
        self.ranks, self.size, self._outcome = frozenset([rank]), size, self

    def test(self) -> bool:
        return True

    def _await(self, seconds: Optional[float]) -> bool:
        return True

    def wait(self) -> "_Decided":
        return self


class _Failed(_Decided):
    """A message that could not be sent."""

    def __init__(self, error: PeerError):
        self.error, self._outcome, self.status = error, self, error.code

    def wait(self) -> Any:
        raise self.error


class MooncakeGroup(ProcessGroup):
    """covey's process group.

    Attributes:
        auto: a lost rank is expected no more; else only from deactivate_ranks() on
        declared: the size that a joiner has before it comes in
        expected: ranks whose part the next operation needs to succeed
        alone: a joiner before join_group()
        message_s: for messages; None: the group's timeout
    """

    auto, declared, message_s = True, 1, None
    _work_of = MooncakeWork

    def _attach(self, group: Any) -> None:
        super()._attach(group)
        view = group.view()
        self.alone = group.rank not in view.members
        self.expected = frozenset() if self.alone else view.members
        self._joiners: set = set()  # ranks that have connected

    def size(self) -> int:
        return self.declared if self.alone else super().size()

    getSize = size

    def _begin_again(self, outcome: Any) -> None:
        self.alone, self.expected = False, outcome.ranks if self.auto else self.expected | outcome.ranks
        super()._begin_again(outcome)

    def _host(self, calls: Sequence[tuple], results: List[torch.Tensor], opts: Any, after: Optional[Callable] = None,
              kept: Any = None) -> Any:
        if not self.alone or calls[0][0] in _MESSAGES:
            work = super()._host(calls, results, opts, after, kept)
        else:
            self._copy(calls, torch.device("cpu"))
            copies = [_Decided(self.rank(), self.size())] * len(calls)
            work = self._batched(MooncakeWork(copies, results, after, None, self))
        work.expected = self.expected
        return work

    def _launch(self, calls: Sequence[tuple], stream: Any) -> None:
        if not self.alone:
            return super()._launch(calls, stream)
        with torch.cuda.stream(stream):
            self._copy(calls, stream.device)
        self._launched += len(calls)

    # torch asks each message of a batch whether it succeeded
    supports_coalescing = property(lambda self: False)

    def active_ranks(self) -> torch.Tensor:
        if self.alone:
            return self._ones_at(frozenset([self.rank()]))
        return super().active_ranks() if self.auto else self._ones_at(self.expected)

    def _quick(self, call: tuple, results: List[torch.Tensor], *given: Any) -> Any:
        """Works on host memory know what they expected."""
        return super()._quick(call, results, *given) if results[0].is_cuda and not self.alone else None

    def _judge(self) -> Any:
        return None if self.alone else super()._judge()

    def _message(self, name: str, t: torch.Tensor, peer: int, tag: int) -> Any:
        try:
            work = super()._message(name, t, peer, tag)
        except PeerError as error:
            work = self._batched(MooncakeWork([_Failed(error)], [t], None, None, self))
        if isinstance(work, MooncakeWork):
            work.message, work.expected = name, frozenset([peer])
            work._timeout = self.message_s or work._timeout
        return work

    @plain
    def _copy(self, calls: Sequence[tuple], device: torch.device) -> None:
        """What this rank gives itself in each of @calls."""
        for name, arguments in calls:
            to, source, count = _own_block(name, arguments, self.rank())
            if to and source and to != source and count:
                _bytes_at(to, count, device).copy_(_bytes_at(source, count, device))


def _own_block(name: str, given: tuple, rank: int) -> tuple:
    """Where the own block goes, where it is, and its bytes."""
    if name == "covey_barrier":
        return None, None, 0
    if name == "covey_alltoallv":
        send, counts, starts, recv, room, places, dtype = given
        size = _BYTES[dtype]
        return recv + places[rank] * size, send + starts[rank] * size, min(counts[rank], room[rank]) * size
    if name == "covey_allgatherv":
        send, count, recv, _, places, dtype = given
        return recv + places[rank] * _BYTES[dtype], send, count * _BYTES[dtype]
    send, recv, count, dtype = given[:4]
    count *= _BYTES[dtype]
    there, here = rank * count, rank * count
    if name in ("covey_allreduce", "covey_reduce", "covey_broadcast", "covey_allgather", "covey_gather"):
        here = 0
    if name in ("covey_allreduce", "covey_reduce", "covey_broadcast", "covey_reduce_scatter", "covey_scatter"):
        there = 0
    return recv and recv + there, send and send + here, count


def _bytes_at(address: int, count: int, device: torch.device) -> torch.Tensor:
    if device.type == "cuda":
        return torch.as_tensor(DeviceMemory(address, count, "|u1"), device=device)
    return torch.frombuffer((ctypes.c_uint8 * count).from_address(address), dtype=torch.uint8)

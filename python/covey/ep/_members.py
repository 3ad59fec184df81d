# SPDX-License-Identifier: Apache-2.0
"""The members behind a buffer: its covey group, its handles, its safe points and its masks.

A handle of covey has one shape, and all ranks make theirs in the same order. A buffer learns a shape from the first
call that has it, which is the same call on all ranks. What a newcomer cannot have seen it gets at the safe point:
the state there lists the shapes in their order.
"""

import contextlib
import ctypes
import os
import struct
import sys
import time
from typing import Any, Dict, FrozenSet, Iterable, NamedTuple, Optional

import torch

from .. import _abi
from .._library import lib
from .._plain import plain
from ..errors import TimeoutError as CoveyTimeout
from ..group import Group, join
from ._meeting import Meeting
from ._pair import Ep

E4M3, COMPACT, FLOAT16, POW2 = 1, 2, 4, 8  # kinds of a shape; POW2: with E4M3
_MOST_SHAPES, _SHAPE = 64, struct.Struct("<6i")
_WINDOW_BYTES, _TIMEOUT, _EVICT = 4 << 30, -3, int(_abi.Late.EVICT)


class Shape(NamedTuple):
    """Of one handle. The number of experts follows the size of the group."""

    tokens: int
    hidden: int
    top_k: int
    per_rank: int  # experts
    kind: int
    lanes: int = 0  # processors of a device; 0: as many as pay


class Members:
    """A group of at most @capacity ranks, of which this is @rank.

    Attributes:
        group: covey.Group; None: not connected yet
        present: ranks that took part in the last operation on host memory, or in the last safe point
    """

    def __init__(self, rank: int, capacity: int):
        if not 0 <= rank < capacity:
            raise ValueError(f"rank is {rank}: it must be from 0 to {capacity - 1}, the capacity less 1")
        self.rank, self.capacity = rank, capacity
        self.group: Optional[Group] = None
        self.pairs: Dict[Shape, Ep] = {}
        self.present: FrozenSet[int] = frozenset()
        self.patience_s = 300.0  # for ranks that are awaited at a safe point
        self.device = torch.device("cpu")  # of the group; that of its host if it has none
        if torch.cuda.is_available():
            self.device = torch.device("cuda", torch.cuda.current_device())
        self._entering = False  # its first operation is a safe point
        self._active: Dict[torch.device, torch.Tensor] = {}  # int32 [size]: 0: masked by hand, or late
        self._masked: set = set()  # by hand
        self._launched = False  # an operation on the device, since the last safe point
        self._words: Optional[torch.Tensor] = None
        self._store: Optional[str] = None

    # ---- life ----

    def meet(self, meeting: Meeting, world: int, timeout_ms: int, window_bytes: int) -> None:
        """Forms the group with @world ranks, or connects to its members; enter() then brings this rank in."""
        settings: Dict[str, Any] = {"rank": self.rank, "store": meeting.store, "group": meeting.group,
                                    "device": self.device.index, "max_ranks": self.capacity,
                                    "join_ms": int(1000 * self.patience_s)}
        joins = os.environ.get("COVEY_CREATE") == "never" if meeting.joins is None else meeting.joins
        settings.update({"create": _abi.Create.NEVER} if joins else {"create": _abi.Create.FIRST, "world": world})
        settings["late"] = _EVICT  # where a call has a deadline
        if timeout_ms > 0:
            settings["late_ms"] = timeout_ms
        if window_bytes > _WINDOW_BYTES and not os.environ.get("COVEY_WINDOW_BYTES"):
            settings["window_bytes"] = -(-window_bytes // 4096) * 4096
        self._store = meeting.store
        self.group = join(**settings)
        if self.group.max_ranks != self.capacity:
            raise ValueError(f"this buffer is for {self.capacity} ranks, the group that it joins for "
                             f"{self.group.max_ranks}: give update_memory_buffers() the same num_ranks everywhere")
        view = self.group.view()
        self._entering = self.rank not in view.members
        self.present = view.members

    @property
    def live(self) -> Group:
        if self.group is None:
            raise RuntimeError("no rank is connected: call update_memory_buffers() and connect_ranks() first")
        return self.group

    @property
    def size(self) -> int:
        return self.live.size

    def close(self, leaves: bool, seconds: Optional[float] = None) -> None:
        """Leaves, unless a call is under way, which a signal handler has interrupted: others see a death then."""
        group = self.group
        if group is None:
            return
        try:
            if leaves and not group._inside:
                group.leave(seconds)
        finally:
            group.close()
            self.group = None

    def __del__(self) -> None:
        """Its buffer was dropped without destroy(): it leaves, if the others answer within a second."""
        group = getattr(self, "group", None)
        if group and group._handle and group._pid == os.getpid() and not sys.is_finalizing():
            with contextlib.suppress(Exception):  # it is closed all the same: the others see a death
                Members.close(self, True, 1)

    # ---- handles ----

    def pair(self, shape: Shape) -> Ep:
        """The handle of @shape; all ranks come here with the same shapes in the same order."""
        ep = self.pairs.get(shape)
        if ep is None:
            if len(self.pairs) == _MOST_SHAPES:
                raise ValueError(f"this is shape {_MOST_SHAPES + 1} of one buffer, {shape}: use fewer different "
                                 "numbers of tokens, hidden elements, experts of a token, and types")
            ep = self.pairs[shape] = self._make(shape)
        return ep

    def _make(self, shape: Shape) -> Ep:
        return Ep(self.live, max_tokens=shape.tokens, hidden=shape.hidden, top_k=shape.top_k,
                  experts=shape.per_rank * self.size, preset="compact" if shape.kind & COMPACT else "ll",
                  rows="bf16" if not shape.kind & E4M3 else "e4m3_pow2" if shape.kind & POW2 else "e4m3",
                  dtype="float16" if shape.kind & FLOAT16 else "bfloat16", lanes=shape.lanes)

    def _lay_out(self, shapes: Iterable[Shape]) -> None:
        """All handles anew: on every rank when the group has grown, on a newcomer always."""
        for ep in self.pairs.values():
            ep.close()
        self.pairs = {}
        for shape in shapes:
            self.pair(shape)

    # ---- safe points ----

    def enter(self) -> None:
        """A newcomer comes in, at the members' next safe point."""
        if self._entering and not self.alone():
            self.admit()

    def alone(self) -> bool:
        """Has this rank masked all others? Then its calls are its own, and take no place among theirs."""
        others = self.live.view().members - {self.rank} if self._masked else frozenset()
        return bool(others) and others <= self._masked

    def admit(self, awaited: Iterable[int] = ()) -> None:
        """A safe point: all members call it at the same place. Ranks that have connected come in.

        Args:
            awaited: safe points follow each other until these are in, or all give up after patience_s
        """
        group, until = self.live, time.monotonic() + self.patience_s
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        state = self._state(frozenset(awaited))
        while True:
            size, before = group.size, self.present
            outcome = group.admit(state)
            state = outcome.state or state
            waits_for, shapes = self._read(state)
            if self._entering or group.size != size:
                self._entering = False
                self._lay_out(shapes)
            self._begin_again(outcome.ranks, outcome.ranks - before)
            if not waits_for:
                return
            missing, late = self._agree(waits_for - outcome.ranks, time.monotonic() > until)
            if not missing:
                return
            if late:
                raise CoveyTimeout(_TIMEOUT, f"ranks {missing} did not come", missing[0], outcome.epoch, outcome.seq)

    @plain
    def _agree(self, missing: FrozenSet[int], late: bool):
        """What any rank misses, and whether one gives up: ranks may know of a death at different times."""
        word = torch.zeros(self.capacity + 1, dtype=torch.uint8)
        word[[*sorted(missing), *[self.capacity] * late]] = 1
        self.live.allreduce(word, op="max")
        return word[:-1].nonzero().view(-1).tolist(), bool(word[-1])

    def _state(self, awaited: FrozenSet[int]) -> bytes:
        bits = sum(1 << r for r in awaited).to_bytes(-(-self.capacity // 8), "little")
        shapes = b"".join(_SHAPE.pack(*shape) for shape in self.pairs)
        return bits + shapes.ljust(_MOST_SHAPES * _SHAPE.size, b"\0")

    def _read(self, state: bytes):
        at = -(-self.capacity // 8)
        bits = int.from_bytes(state[:at], "little")
        shapes = [Shape(*found) for found in _SHAPE.iter_unpack(state[at:]) if found[0]]
        return frozenset(r for r in range(self.capacity) if bits >> r & 1), shapes

    @plain
    def _begin_again(self, members: FrozenSet[int], came: FrozenSet[int]) -> None:
        self.present, self._launched = members, False
        self._masked -= came
        for device, active in list(self._active.items()):
            if len(active) != self.size:
                del self._active[device]
                continue
            active.fill_(1)
            if self._masked:
                active[sorted(self._masked)] = 0

    # ---- masks ----

    def active(self, device: torch.device) -> torch.Tensor:
        """int32 [size]: dispatch and combine read it, and a passed deadline writes 0."""
        found = self._active.get(device)
        if found is None:
            found = self._active[device] = self._new_active(device)
        return found

    @plain
    def _new_active(self, device: torch.device) -> torch.Tensor:
        active = torch.ones(self.size, dtype=torch.int32, device=device)
        known = [r for r in self._masked if r < self.size]
        if known:
            active[known] = 0
        return active

    @plain
    def mask(self, rank: int, masked: bool) -> None:
        (self._masked.add if masked else self._masked.discard)(rank)
        for active in self._active.values():
            if rank < len(active):
                active[rank] = 0 if masked else 1

    @plain
    def unmask_all(self) -> None:
        self._masked.clear()
        for active in self._active.values():
            active.fill_(1)

    @plain
    def query(self, into: torch.Tensor, ranks: Optional[int] = None) -> None:
        """1 for ranks that took no part in the last operation here, are masked, or are not members; on into's device.

        In the operation in which a rank dies this may differ between survivors: its part may be here and not there.
        From the next operation on, and behind a barrier, it is the same on all.

        Args:
            ranks: entries of @into; None: the capacity
        """
        ranks = self.capacity if ranks is None else ranks
        if not isinstance(into, torch.Tensor):
            raise TypeError(f"mask_status is {type(into).__name__}: it must be an int32 tensor")
        if into.dtype != torch.int32 or into.numel() != ranks or not into.is_contiguous():
            raise ValueError(f"mask_status is {into.dtype} {tuple(into.shape)}: it must be a contiguous int32 tensor "
                             f"of {ranks}, an entry for each rank")
        flat = into.view(-1)
        if into.is_cuda and self._launched:
            self._query_device(flat)
        else:
            flat.fill_(1)
            flat[[r for r in sorted(self.present) if r < ranks]] = 0
        active = self._active.get(into.device)
        if active is not None:
            n = min(ranks, len(active))
            flat[:n].masked_fill_(active[:n] == 0, 1)
        elif self._masked:
            flat[sorted(self._masked)] = 1

    def _query_device(self, flat: torch.Tensor) -> None:
        """From struct covey_device_outcome, behind what is on the current stream."""
        if self._words is None:
            from ..torch._launch import OUTCOME_WORDS, DeviceMemory

            at = ctypes.c_void_p()
            self.live._check(lambda handle: lib.covey_device_outcome_at(handle, ctypes.byref(at)))
            self._words = torch.as_tensor(DeviceMemory(at.value, *OUTCOME_WORDS), device=flat.device)
        words = self._words
        ranks = torch.arange(len(flat), device=flat.device).clamp_(max=255)
        # Contributors, but for those whose part is not here: of each 64 ranks a word.
        here = torch.cat((words[2:3] & ~words[3:4], words[4:7] & ~words[7:10]))
        flat.copy_(1 - (here[ranks // 64] >> ranks % 64 & 1))

    @plain
    def write_active(self, active: torch.Tensor) -> None:
        """Writes 0 into @active for ranks that took no part in the last operation here."""
        if active.is_cuda:
            lost = torch.zeros(len(active), dtype=torch.int32, device=active.device)
            self._query_device(lost)
            active.masked_fill_(lost != 0, 0)
        else:
            lost = [r for r in range(len(active)) if r not in self.present]
            if lost:
                active[lost] = 0

    def took_part(self, ranks: FrozenSet[int]) -> None:
        """The outcome of an operation on host memory."""
        self.present = ranks

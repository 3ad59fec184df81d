# SPDX-License-Identifier: Apache-2.0
"""Receives from any source, on the host: one receive is under way for each peer, and the first message that comes counts.

Those of the other peers stay under way for the next receive with that tag, from whatever source.
"""

import time
from typing import Any, Dict, List, Optional, Tuple

import torch
from torch.distributed import Work

from .._plain import empty, plain
from ..errors import PeerError
from ..errors import TimeoutError as CoveyTimeout
from ._errors import errors_of_torch

_TIMEOUT = -3


class AnySource:
    """The receives of a group that are under way for nobody in particular."""

    def __init__(self, group: Any):
        self._group = group  # covey.Group
        self.waiting: Dict[Tuple[int, int], Tuple[torch.Tensor, Any]] = {}  # by peer and tag: memory, covey.Work

    def epoch(self) -> int:
        return self._group.view().epoch

    def has(self, peer: int, tag: int) -> bool:
        return (peer, tag) in self.waiting

    def begin(self, count: int, tag: int) -> List[int]:
        """Starts what is not under way: a receive of @count bytes from each peer. Returns the peers."""
        group = self._group
        peers = sorted(group.view().members - {group.rank})
        for peer in peers:
            known = self.waiting.get((peer, tag))
            if known is None:
                room = empty(count, dtype=torch.uint8, device="cpu")
                group._recv_known(self.waiting, (peer, tag), room, peer, tag)
            elif known[0].numel() < count:
                raise ValueError(f"a receive of {known[0].numel()} bytes from any source is under way, with tag {tag}: "
                                 f"another of {count} must have another tag")
        return peers


class AnySourceWork(Work):
    """A receive from any source, or from one for which such a receive is under way."""

    def __init__(self, pool: AnySource, tensor: torch.Tensor, peers: List[int], tag: int, timeout: Optional[float]):
        super().__init__()
        self._pool, self._tensor, self._peers, self._tag, self._timeout = pool, tensor, peers, tag, timeout
        self._source: Optional[int] = None
        self._mine: Any = None  # a message that has come, with its peer, until it is in @tensor

    def _look(self) -> bool:
        """Has a message come? Raises PeerError when none can come any more."""
        if self._source is None and self._mine is None:
            self._claim()
        if self._mine:
            self._deliver()
        return self._source is not None

    def _claim(self) -> None:
        """Takes the first message that has come: two works may want it, and a signal may come at any call."""
        waiting, tag = self._pool.waiting, self._tag
        for peer in list(self._peers):
            receive = waiting.get((peer, tag))
            if receive is None or not receive[1].test():
                continue
            try:
                del waiting[peer, tag]
                self._mine = peer, receive
                return
            except KeyError:
                pass

    @plain
    def _deliver(self) -> None:
        peer, (room, work) = self._mine
        try:
            outcome = work.wait()
        except PeerError:
            self._mine = None
            self._peers.remove(peer)
            if not self._peers:
                raise
            return
        size = min(outcome.bytes, self._tensor.numel() * self._tensor.element_size())
        self._tensor.view(-1).view(torch.uint8)[:size].copy_(room[:size])
        self._source, self._mine = peer, None

    def wait(self, timeout=None) -> bool:
        seconds = timeout.total_seconds() if timeout is not None and timeout.total_seconds() > 0 else self._timeout
        until, pause = None if seconds is None else time.monotonic() + seconds, 10e-6
        with errors_of_torch():
            while not self._look():
                if until is not None and time.monotonic() > until:
                    raise CoveyTimeout(_TIMEOUT, f"no message with tag {self._tag} came from ranks {self._peers}",
                                       epoch=self._pool.epoch())
                time.sleep(pause)
                pause = min(2 * pause, 1e-3)
        return True

    def is_completed(self) -> bool:
        return self._look()

    is_success = isCompleted = isSuccess = is_completed

    def source_rank(self) -> int:
        """Rank in the group that sent it."""
        return self._source if self._source is not None else -1

    _source_rank = sourceRank = source_rank

    def result(self) -> List[torch.Tensor]:
        return [self._tensor]

    def synchronize(self) -> None:
        self.wait()

# SPDX-License-Identifier: Apache-2.0
"""A barrier on the host that says who is missing: by messages to rank 0, and its answers."""

import time
from typing import Any, Optional

import torch

from .._plain import plain
from ..errors import Error
from ..errors import TimeoutError as CoveyTimeout
from ._errors import errors_of_torch

_TIMEOUT, _TAG = -3, 2**31 - 2


class Monitor:
    """The monitored barriers of a group."""

    def __init__(self, group: Any):
        self._group = group  # covey.Group
        self._round = 0  # number of the present one, alike on all ranks
        self._awaited: dict = {}  # receives under way, by peer: what has timed out the next barrier continues

    def begin_again(self, epoch: int) -> None:
        """After a safe point: a number above those before, and the same on newcomers."""
        self._round = epoch << 32

    @plain
    def barrier(self, seconds: Optional[float], all_missing: bool) -> None:
        """Raises TimeoutError: on rank 0 with the missing ranks, elsewhere if rank 0 does not confirm."""
        self._round += 1
        rank = self._group.rank
        until = None if seconds is None else time.monotonic() + seconds
        view = self._group.view()
        others = sorted(view.members - {rank})
        with errors_of_torch():
            if rank:
                self._tell(0)
                if not self._came(0, until):
                    cause = f"monitored barrier: rank 0 did not confirm it within {seconds} s"
                    raise CoveyTimeout(_TIMEOUT, cause, 0, view.epoch)
                return
            missing = [r for r in others if not self._came(r, until)]
            if missing:
                named = missing if all_missing else missing[:1]
                cause = f"monitored barrier: ranks {named} did not come within {seconds} s"
                raise CoveyTimeout(_TIMEOUT, cause, named[0], view.epoch)
            for r in others:
                self._tell(r)

    def _tell(self, peer: int) -> None:
        self._group.send(torch.tensor([self._round], device="cpu"), peer, _TAG)

    def _came(self, peer: int, until: Optional[float]) -> bool:
        """Has @peer come to this barrier? What it said at one before, that timed out here, does not count."""
        while True:
            if peer not in self._awaited:
                room = torch.zeros(1, dtype=torch.int64, device="cpu")
                self._group._recv_known(self._awaited, peer, room, peer, _TAG)
            room, work = self._awaited[peer]
            try:
                work.wait(None if until is None else max(0.0, until - time.monotonic()))
            except TimeoutError:
                return False
            except Error:
                del self._awaited[peer]
                raise
            del self._awaited[peer]
            if int(room[0]) >= self._round:
                return True

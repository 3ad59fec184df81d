# SPDX-License-Identifier: Apache-2.0
"""Mooncake's elastic process group by its names, over covey.

    from covey.compat import mooncake
    mooncake.install()                             # the backends "mooncake" and "mooncake-cpu"
    dist.init_process_group("mooncake", pg_options=mooncake.MooncakeBackendOptions(active_ranks))

Operations go on after a death, with the survivors' contributions, as there. What differs: survivors agree on them.
"""

import sys
import time
from typing import Any, List, Optional, Sequence

import torch
import torch.distributed as dist

from ..errors import TimeoutError as CoveyTimeout
from ..torch import Options, ProcessGroup
from ..torch import admit as _admit
from ..torch import register as _register
from ..torch._errors import errors_of_torch
from ..torch._register import _create

_STATE_BYTES, _TIMEOUT = 512, -3  # of a safe point: a bit for each rank that is awaited

__all__ = ["MooncakeBackendOptions", "extend_group_size_to", "get_active_ranks", "get_failed_ranks_hint",
           "get_peer_state", "install", "join_group", "recover_ranks", "set_device_filter", "set_host_ip"]


class MooncakeBackendOptions(Options):
    """Options of a group. @active_ranks: int32 [max_world_size], on host or device: 1 for active ranks, kept true."""

    def __init__(self, active_ranks: Optional[torch.Tensor] = None, is_extension: bool = False,
                 max_world_size: Optional[int] = None, recovered_rank: bool = False):
        super().__init__(on_loss="continue", is_extension=bool(is_extension or recovered_rank),
                         max_ranks=max_world_size, settings={"admission": "manual"})
        self.active_ranks = active_ranks


def _make(opts: Any, given: Any, device: str) -> ProcessGroup:
    options = given if isinstance(given, Options) else MooncakeBackendOptions()
    options.device = device
    group = _create(opts, options)
    group._set_active(getattr(options, "active_ranks", None))
    return group


def install(alias: bool = False) -> None:
    """Registers the backends "mooncake" and "mooncake-cpu". @alias: `import mooncake.pg` finds this module."""
    _register()
    for name, device, kinds in (("mooncake", "auto", ["cpu", "cuda"]), ("mooncake-cpu", "none", ["cpu"])):
        if name not in dist.Backend.backend_list:
            dist.Backend.register_backend(name, lambda opts, given=None, device=device: _make(opts, given, device),
                                          extended_api=True, devices=kinds)
    if alias:
        for name in ("mooncake", "mooncake.ep", "mooncake.pg"):
            sys.modules.setdefault(name, sys.modules[__name__])


def get_peer_state(group: ProcessGroup, ranks: Sequence[int]) -> List[bool]:
    """For each of @ranks: is its process connected, so that recover_ranks() may take it in?"""
    view = group.covey.view()
    return [r in view.members or r in view.pending or r in _connected(group) for r in ranks]


def _connected(group: ProcessGroup) -> frozenset:
    """Joiners that have said so: each is an event."""
    from .._abi import EventKind

    known = group.__dict__.setdefault("_joiners", set())
    for event in group.covey.events():
        if event.kind == EventKind.JOIN_REQUESTED and event.rank is not None:
            known.add(event.rank)
    return frozenset(known)


def _admit_all(group: ProcessGroup, wanted: Optional[frozenset]) -> None:
    """Safe points until all of @wanted are in; None, on a newcomer: those that the members wait for.

    Who is in early waits with the others. All give up together, after the group's timeout.
    """
    until = None if group._timeout_s is None else time.monotonic() + group._timeout_s
    state = sum(1 << r for r in wanted or ()).to_bytes(_STATE_BYTES, "little")
    while True:
        outcome = _admit(info=state, group=group)
        state = outcome.state
        missing = [r for r in range(8 * _STATE_BYTES) if state[r // 8] >> r % 8 & 1 and r not in outcome.ranks]
        if not missing:
            return
        late = torch.tensor([until is not None and time.monotonic() > until], dtype=torch.uint8)
        group.allreduce([late], dist.ReduceOp.MAX).wait()
        if late.item():
            with errors_of_torch():
                raise CoveyTimeout(_TIMEOUT, f"ranks {missing} did not come", missing[0], outcome.epoch, outcome.seq)


def recover_ranks(group: ProcessGroup, ranks: Sequence[int]) -> None:
    """Takes @ranks in, again or for the first time: then the group grows. All members call it at the same place; the
    ranks themselves call join_group().

    Raises TimeoutError, on all, if they are not there within the group's timeout.
    """
    wanted, size = frozenset(ranks), group.covey.size
    beyond = sorted(r for r in wanted if not 0 <= r < group.covey.max_ranks)
    if beyond:
        raise ValueError(f"ranks {beyond} have no place: they must be from 0 to {group.covey.max_ranks - 1}; "
                         "max_world_size of the options sets it")
    known = [r for r in wanted if r < size]
    if known:
        group.covey.recover(known)
    if len(known) < len(wanted):
        group.covey.extend(max(wanted) + 1)
    _admit_all(group, wanted)
    group.__dict__.setdefault("_joiners", set()).difference_update(wanted)
    group._refresh_active()


def extend_group_size_to(group: ProcessGroup, size: int) -> None:
    """Grows the group to @size ranks; else as recover_ranks()."""
    if size > group.size():
        group.covey.extend(size)
        _admit_all(group, frozenset(range(group.size(), size)))
    group._refresh_active()


def join_group(group: ProcessGroup) -> None:
    """The first call of a rank that was made with is_extension or recovered_rank: it comes in, with those beside it."""
    _admit_all(group, None)
    group._refresh_active()


def get_active_ranks(group: ProcessGroup) -> torch.Tensor:
    """int32 [max_world_size]: 1 for active ranks."""
    return group.active_ranks()


def get_failed_ranks_hint(work: Any) -> List[int]:
    """Ranks of the group that did not contribute to @work."""
    outcome = work.outcomes[-1] if getattr(work, "outcomes", None) else work.outcome()
    return sorted(frozenset(range(outcome.size)) - outcome.ranks)


def set_host_ip(address: str) -> None:
    """The interface that peers dial; before the group is made."""
    import os

    os.environ["COVEY_INTERFACE"] = address


def set_device_filter(names: Sequence[str]) -> None:
    """The RDMA device to take; before the group is made."""
    import os

    if names:
        os.environ["COVEY_RDMA_DEVICE"] = names[0]

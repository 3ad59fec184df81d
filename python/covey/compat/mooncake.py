# SPDX-License-Identifier: Apache-2.0
"""Mooncake's elastic process group by its names, over covey.

    from covey.compat import mooncake
    mooncake.install()                             # the backends "mooncake" and "mooncake-cpu"
    dist.init_process_group("mooncake", pg_options=mooncake.MooncakeBackendOptions(active_ranks))

Operations go on after a death, with the survivors' contributions, as there. What differs: survivors agree on them.
"""

import copy
import enum
import select
import sys
import time
from typing import Any, List, NamedTuple, Optional, Sequence, Tuple, Union

import torch
import torch.distributed as dist

from .._plain import plain
from ..ep._meeting import buffers
from ..errors import Error, HandleError, PeerError
from ..errors import TimeoutError as CoveyTimeout
from ..group import join
from ..torch import Options, ProcessGroup
from ..torch import admit as _admit
from ..torch import register as _register
from ..torch._errors import errors_of_torch
from ..torch._register import _create, _settings, register_backend
from ..torch._work import Batch
from ._mooncake_group import MooncakeGroup, MooncakeWork

_STATE_BYTES, _TIMEOUT, _PEER = 512, -3, -20  # of a safe point: a bit for each rank that is awaited
_PAUSE_S = 0.05  # between two safe points in which nobody came
_hang: dict = {}  # settings of groups that are made from here on

__all__ = ["MooncakeBackendOptions", "ProposalStatus", "ProposeViewUpdateResponse", "SyncAfterFailureResponse",
           "SyncAfterFailureStatus", "ViewUpdateStatus", "activate_ranks", "deactivate_ranks", "extend_group_size_to",
           "get_active_ranks", "get_current_epoch", "get_failed_ranks_hint", "get_local_success", "get_num_synced_ranks",
           "get_peer_state", "install", "join_group", "recover_ranks", "set_collective_timeout_us", "set_device_filter",
           "set_fault_reconciliation_window_us", "set_host_ip", "set_p2p_timeout_us", "set_transfer_engine",
           "sync_after_failure"]


class ProposalStatus(enum.Enum):
    Rejected, Applied, AppliedWithDroppedRanks = range(3)


class SyncAfterFailureStatus(enum.Enum):
    Reconciled, NoPending, Rejected = range(3)


ViewUpdateStatus = ProposalStatus


class ProposeViewUpdateResponse(NamedTuple):
    status: ProposalStatus
    new_epoch: int
    dropped_ranks: Tuple[int, ...] = ()
    reject_reason: str = ""


class SyncAfterFailureResponse(NamedTuple):
    status: SyncAfterFailureStatus
    reject_reason: str = ""


class MooncakeBackendOptions(Options):
    """Options of a group, in the order of Mooncake 0.3.14: MooncakeBackendOptions(max_group_size, is_extension,
    auto_deactivate_on_failure, auto_sync_on_failure), or (active_ranks, is_extension, max_group_size).

    Args:
        active_ranks: int32 [max_group_size], on host or device: 1 for active ranks, kept true
        max_world_size: another name of max_group_size
        recovered_rank: another name of is_extension
        auto_deactivate_on_failure: False: a lost rank is expected until deactivate_ranks() names it
        auto_sync_on_failure: not read: an operation ends in the view that all agree on
    """

    def __init__(self, active_ranks: Union[torch.Tensor, int, None] = None, is_extension: bool = False,
                 *rest: Any, max_group_size: Optional[int] = None, max_world_size: Optional[int] = None,
                 recovered_rank: bool = False, auto_deactivate_on_failure: bool = True,
                 auto_sync_on_failure: Optional[bool] = None):
        if isinstance(active_ranks, int):
            active_ranks, max_group_size = None, active_ranks
            auto_deactivate_on_failure, auto_sync_on_failure = (
                *rest, *(auto_deactivate_on_failure, auto_sync_on_failure)[len(rest):])
        elif rest:
            max_group_size, = rest
        if auto_sync_on_failure and not auto_deactivate_on_failure:
            raise ValueError("auto_sync_on_failure is True: it needs auto_deactivate_on_failure=True")
        super().__init__(on_loss="continue", is_extension=bool(is_extension or recovered_rank),
                         max_ranks=max_group_size or max_world_size, settings={"admission": "manual", **_hang})
        self.active_ranks, self.auto_deactivate_on_failure = active_ranks, auto_deactivate_on_failure


def _make(opts: Any, given: Any, device: str) -> ProcessGroup:
    options = given if isinstance(given, Options) else MooncakeBackendOptions()
    options.device = device
    group = _create(opts, options, MooncakeGroup)
    group.declared, group.auto = opts.group_size, getattr(options, "auto_deactivate_on_failure", True)
    group._set_active(getattr(options, "active_ranks", None))
    return group


def install(alias: bool = False) -> None:
    """Registers the backends "mooncake" and "mooncake-cpu". @alias: `import mooncake.pg` finds this module."""
    _register()
    for name, device in (("mooncake", "auto"), ("mooncake-cpu", "none")):
        if name not in dist.Backend.backend_list:
            register_backend(name, lambda opts, given=None, device=device: _make(opts, given, device), device != "none")
    if alias:
        globals()["pg"] = sys.modules[__name__]  # `from mooncake import pg` looks here
        for name in ("mooncake", "mooncake.ep", "mooncake.pg"):
            sys.modules.setdefault(name, sys.modules[__name__])


@plain
def get_peer_state(group: ProcessGroup, ranks: Sequence[int]) -> List[bool]:
    """For each of @ranks: is its process connected, so that recover_ranks() may take it in?

    In a job with buffers of covey.ep all members call it at the same place and get the same answer: SGLang lets each
    rank decide by it between two steps. A newcomer may have no buffer yet: a safe point tells it whether others have.
    """
    here = _here(group)
    states = torch.tensor([r in here for r in ranks], dtype=torch.uint8, device="cpu")
    if (buffers() or group.__dict__.get("_have_buffers")) and not getattr(group, "alone", False):
        group.allreduce([states], dist.ReduceOp.MIN).wait()
    return states.bool().tolist()


def _here(group: ProcessGroup) -> frozenset:
    """Members and connected joiners: each of these is an event, and so is its end."""
    from .._abi import EventKind

    known = group.__dict__.setdefault("_joiners", set())
    for event in group.covey.events():
        if event.kind == EventKind.JOIN_REQUESTED:
            known.add(event.rank)
        elif event.kind == EventKind.JOIN_LOST:
            known.discard(event.rank)
    view = group.covey.view()
    known -= view.members
    return view.members | view.pending | known


@plain
def _admit_all(group: ProcessGroup, wanted: Optional[frozenset]) -> None:
    """Safe points until all of @wanted are in; None, on a newcomer: those that the members wait for.

    Who is in early waits with the others. All give up together: after the group's timeout, or when a joiner dies.
    """
    seen = frozenset(group.__dict__.get("_joiners", ()))  # at the last look
    until = None if group._timeout_s is None else time.monotonic() + group._timeout_s
    state = sum(1 << r for r in wanted or ()).to_bytes(_STATE_BYTES, "little") + bytes([buffers() > 0])
    while True:
        outcome = _admit(info=state, group=group)
        state = outcome.state
        group._have_buffers = state[-1]
        missing = [r for r in range(8 * _STATE_BYTES) if state[r // 8] >> r % 8 & 1 and r not in outcome.ranks]
        if not missing:
            return
        here = _here(group)
        gone, seen = [r in seen and r not in here for r in missing], seen | here
        over = until is not None and time.monotonic() > until
        late = torch.tensor([over, *gone], dtype=torch.uint8, device="cpu")
        group.allreduce([late], dist.ReduceOp.MAX).wait()
        late, *gone = late.tolist()
        with errors_of_torch():
            if any(gone):
                dead = [r for r, is_gone in zip(missing, gone) if is_gone]
                raise PeerError(_PEER, f"ranks {dead} died before they came in", dead[0], outcome.epoch, outcome.seq)
            if late:
                raise CoveyTimeout(_TIMEOUT, f"ranks {missing} did not come", missing[0], outcome.epoch, outcome.seq)
        select.select([group.covey.fileno()], [], [], _PAUSE_S)  # until something happens


def _take_in(group: ProcessGroup, wanted: frozenset) -> None:
    beyond = sorted(r for r in wanted if not 0 <= r < group.covey.max_ranks)
    if beyond:
        raise ValueError(f"ranks {beyond} have no place: they must be from 0 to {group.covey.max_ranks - 1}; "
                         "max_group_size of the options sets it")
    size = group.covey.size
    known = [r for r in wanted if r < size]
    if known:
        group.covey.recover(known)
    if len(known) < len(wanted):
        group.covey.extend(max(wanted) + 1)
    _admit_all(group, wanted)
    group.__dict__.setdefault("_joiners", set()).difference_update(wanted)
    group._refresh_active()


def activate_ranks(group: ProcessGroup, ranks: Sequence[int]) -> ProposeViewUpdateResponse:
    """Takes @ranks in, again or for the first time: then the group grows. All members call it at the same place; the
    ranks themselves call join_group().

    Rejected, on all: they are not there within the group's timeout, or one dies before.
    """
    try:
        _take_in(group, frozenset(ranks))
    except (CoveyTimeout, PeerError) as error:
        return ProposeViewUpdateResponse(ProposalStatus.Rejected, get_current_epoch(group), (), str(error))
    return ProposeViewUpdateResponse(ProposalStatus.Applied, get_current_epoch(group))


recover_ranks = activate_ranks


def deactivate_ranks(group: ProcessGroup, ranks: Sequence[int]) -> ProposeViewUpdateResponse:
    """Takes @ranks out; any member may call it. A process that is taken out may come back by join_group()."""
    others, me = [r for r in ranks if r != group.rank()], group.rank() in ranks
    works = [group.covey.evict(r) for r in others if r in group.covey.view().members]
    try:
        for work in works:
            work.wait(group._timeout_s)
        epoch = get_current_epoch(group)
        if me:
            group.covey.leave(group._timeout_s)
    except Error as error:
        return ProposeViewUpdateResponse(ProposalStatus.Rejected, get_current_epoch(group), (), str(error))
    group.expected = _expected(group) - frozenset(ranks)
    group._refresh_active()
    return ProposeViewUpdateResponse(ProposalStatus.Applied, epoch)


def _expected(group: ProcessGroup) -> frozenset:
    return getattr(group, "expected", None) or group.covey.view().members


def sync_after_failure(group: ProcessGroup) -> SyncAfterFailureResponse:
    """What this rank expects is brought up to the view, unless auto_deactivate_on_failure is False. Reconciled: a rank
    of it is lost."""
    view = group.covey.view()
    lost = _expected(group) - view.members - view.pending
    if getattr(group, "auto", True):
        group.expected = _expected(group) - lost
        group._refresh_active()
    return SyncAfterFailureResponse(SyncAfterFailureStatus.Reconciled if lost else SyncAfterFailureStatus.NoPending)


def extend_group_size_to(group: ProcessGroup, size: int) -> None:
    """Grows the group to @size ranks. Raises, on all, TimeoutError or PeerError where activate_ranks() is Rejected."""
    if size > group.size():
        group.covey.extend(size)
        _admit_all(group, frozenset(range(group.size(), size)))
    group._refresh_active()


def join_group(group: ProcessGroup) -> None:
    """A rank comes in, with those beside it: one that was made with is_extension, or one that the others left out."""
    try:
        _admit_all(group, None)
    except HandleError:  # fenced, or it has left: a new process to the others
        options = copy.copy(group.options_of_covey)
        options.is_extension = True
        settings = _settings(options, group.rank(), group.size(), group._timeout_s)
        group._depart(1)
        with errors_of_torch():
            group._attach(join(**settings, **group.where))
        _admit_all(group, None)
    group._refresh_active()


def get_active_ranks(group: ProcessGroup) -> torch.Tensor:
    """int32 [max_group_size]: 1 for active ranks."""
    return group.active_ranks()


def get_num_synced_ranks(group: ProcessGroup) -> int:
    """Ranks that are in, or connected."""
    return len(_here(group))


def get_current_epoch(group: ProcessGroup) -> int:
    """That of the last view; it only grows."""
    return group.covey.view().epoch


def _works(work: Any) -> list:
    return work._works if isinstance(work, Batch) else [work]


def _lost(work: Any) -> frozenset:
    if isinstance(work, MooncakeWork):
        return work.lost
    outcome = work.outcomes[-1] if getattr(work, "outcomes", None) else work.outcome()
    group = getattr(work, "_group", None)
    return (_expected(group) if group else frozenset(range(outcome.size))) - outcome.ranks


def get_failed_ranks_hint(work: Any) -> torch.Tensor:
    """int32 [max_group_size]: 1 for the ranks that @work expected, and that did not contribute."""
    lost = frozenset().union(*(_lost(w) for w in _works(work)))
    group = next((w._group for w in _works(work) if getattr(w, "_group", None)), dist.group.WORLD)
    return group._ones_at(lost)


def get_local_success(work: Any) -> bool:
    """Has every rank that @work expected contributed? False too while it is under way."""
    return all(w.succeeded() if isinstance(w, MooncakeWork) else w.is_success() and not _lost(w) for w in _works(work))


def set_collective_timeout_us(us: int) -> None:
    """The silence after which groups that are made from here on suspect a rank of the same host."""
    _hang["hang_ms"] = max(1, us // 1000)


def set_p2p_timeout_us(us: int) -> None:
    """A message that takes longer raises TimeoutError."""
    MooncakeGroup.message_s = us / 1e6


def set_fault_reconciliation_window_us(us: int) -> None:
    """Nothing: a view is decided when the survivors have reported."""


def set_transfer_engine(engine: Any) -> None:
    """Nothing: data go over covey's own links."""


def set_host_ip(address: str) -> None:
    """The interface that peers dial; before the group is made."""
    import os

    os.environ["COVEY_INTERFACE"] = address


def set_device_filter(names: Sequence[str]) -> None:
    """The RDMA device to take; before the group is made."""
    import os

    if names:
        os.environ["COVEY_RDMA_DEVICE"] = names[0]

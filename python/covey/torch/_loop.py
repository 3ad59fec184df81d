# SPDX-License-Identifier: Apache-2.0
"""What a training loop calls: the safe point, the look at losses, averages over those who are there."""

from typing import Any, Iterable, Optional

import torch
import torch.distributed as dist

from .._plain import plain
from ..errors import RootError
from ..outcome import Outcome
from ._errors import errors_of_torch
from ._process_group import ProcessGroup

_NOBODY = 2**31 - 1


def _group(group: Optional[ProcessGroup]) -> ProcessGroup:
    group = group or dist.group.WORLD
    if not isinstance(group, ProcessGroup):
        raise TypeError(f"{type(group).__name__} is no process group of covey")
    return group


def admit(tensors: Iterable[torch.Tensor] = (), info: bytes = b"", group: Optional[ProcessGroup] = None) -> Outcome:
    """The safe point: the only place where ranks come in. All ranks call it at the same place; a newcomer's first call.

    Args:
        tensors: what a newcomer needs, alike in number, shape and type on all ranks, in place: parameters, optimizer
            state, a step counter. When ranks have come in, they get those of the lowest rank that was there
        info: a few bytes, as many on all ranks: a newcomer gets those of that rank as outcome.state

    Under on_loss "fail" it also acknowledges losses: operations go on without those ranks.

    Returns:
        the outcome: `ranks` are the members, `size` the group's size from here on
    """
    pg = _group(group)
    pg._flush()
    if pg._cuda is not None:
        torch.cuda.synchronize(pg._cuda)
    with errors_of_torch():
        outcome = pg.covey.admit(info)
    pg._begin_again(outcome)
    tensors = list(tensors)
    while outcome.epoch != pg._admitted_epoch and tensors and not _hand_over(pg, tensors):
        pass
    pg._admitted_epoch = outcome.epoch
    return outcome


@plain
def _hand_over(pg: ProcessGroup, tensors: list) -> bool:
    """Newcomers get the tensors of the lowest rank that has been admitted before. False, on all: that one is gone."""
    root = torch.tensor([_NOBODY if pg._admitted_epoch is None else pg.rank()], dtype=torch.int32)
    if pg._cuda is not None:
        root = root.to(pg._cuda)
    pg.allreduce([root], dist.ReduceOp.MIN).wait()
    opts = dist.BroadcastOptions()
    opts.rootRank = int(root.item())
    if opts.rootRank == _NOBODY:
        raise RuntimeError("admit(): no rank is left that has the tensors")
    works = [pg.broadcast([t], opts) for t in tensors]
    try:
        for work in works:
            work.wait()
    except RootError:
        return False
    if not any(t.is_cuda for t in tensors):
        return True
    outcome = pg.check()  # broadcasts on devices raise nothing, and all ranks see the same of a barrier
    return opts.rootRank in outcome.ranks


def check(group: Optional[ProcessGroup] = None) -> None:
    """Raises what became of the operations so far.

    On devices it is a collective, and the host waits for the device. Under on_loss "fail" a loss stays until admit(),
    so one call before optimizer.step() is enough for all gradients. On the host it raises again what an operation
    raised.
    """
    _group(group).check()


def recover(ranks: Iterable[int], group: Optional[ProcessGroup] = None):
    """Asks that joiners of @ranks may come in at a safe point: a covey.Work, decided when all are admitted."""
    return _group(group).covey.recover(ranks)


def average_hook(state: Any, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    """A communication hook for DistributedDataParallel: gradients are averaged over the contributors, however many.

    Args:
        state: a process group; None: the default one
    """
    opts = dist.AllreduceOptions()
    opts.reduceOp = dist.ReduceOp.AVG
    opts.asyncOp = True
    work = _group(state).allreduce([bucket.buffer()], opts)
    return work.get_future().then(lambda future: future.value()[0])

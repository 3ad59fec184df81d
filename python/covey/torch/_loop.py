# SPDX-License-Identifier: Apache-2.0
"""What a training loop calls: the safe point, the look at losses, averages over those who are there."""

from typing import Any, Iterable, Optional

import torch
import torch.distributed as dist

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
    """The safe point: the only place where ranks come in. All ranks call it at the same place; for one it is the first call.

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
    if pg._last is not None:
        pg._last.synchronize()
    pg._last = pg._last_address = None
    if pg._look:
        pg._look.forget()
    with errors_of_torch():
        outcome = pg.covey.admit(info)
    pg._admitted_ranks = outcome.ranks
    tensors = list(tensors)
    while outcome.epoch != pg._admitted_epoch and tensors:
        try:
            _hand_over(pg, tensors)
            break
        except RootError:  # on all: another rank has them, too
            continue
    pg._admitted_epoch = outcome.epoch
    pg._refresh_active()
    return outcome


def _hand_over(pg: ProcessGroup, tensors: list) -> None:
    """Newcomers get the tensors of the lowest rank that has been admitted before."""
    root = torch.tensor([_NOBODY if pg._admitted_epoch is None else pg.rank()], dtype=torch.int32)
    if pg.options_of_covey.device != "none":
        root = root.cuda()
    pg.allreduce([root], dist.ReduceOp.MIN).wait()
    opts = dist.BroadcastOptions()
    opts.rootRank = int(root.item())
    if opts.rootRank == _NOBODY:
        raise RuntimeError("admit(): no rank is left that has the tensors")
    works = [pg.broadcast([t], opts) for t in tensors]
    for work in works:
        work.wait()


def check(group: Optional[ProcessGroup] = None) -> None:
    """Waits until the device has passed all operations, and raises what the last one ended with. On the host: nothing.

    Under on_loss "fail" a loss stays until admit(), so one call before optimizer.step() is enough for all gradients.
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

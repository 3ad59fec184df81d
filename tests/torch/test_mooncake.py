# SPDX-License-Identifier: Apache-2.0
"""covey.compat.mooncake as Mooncake 0.3.14: a joiner alone, ranks that are taken out and come back, what a work tells."""

import time

import pytest
import torch
import torch.distributed as dist
from children import die, tell, told
from conftest import mooncake_group

from covey.compat import mooncake as pg

SIZE = 3


def summed(group, value):
    work = dist.all_reduce(x := torch.tensor([value]), async_op=True)
    work.wait()
    return x.item(), pg.get_local_success(work), pg.get_failed_ranks_hint(work).tolist()


def work_alone(group):
    """Each collective of a joiner has its own part, at its own place."""
    rank, mine = group.rank(), torch.tensor([5, 6])
    assert dist.get_world_size() == SIZE
    assert summed(group, 7) == (7, True, [0] * SIZE)
    dist.all_gather_into_tensor(out := torch.zeros(2 * SIZE, dtype=torch.int64), mine)
    assert out.tolist() == [v for r in range(SIZE) for v in ([5, 6] if r == rank else [0, 0])]
    dist.reduce_scatter_tensor(out := torch.zeros(2, dtype=torch.int64), torch.arange(2 * SIZE))
    assert out.tolist() == [2 * rank, 2 * rank + 1]
    dist.all_to_all_single(out := torch.full((SIZE,), -1), torch.arange(SIZE))
    assert out.tolist() == [r if r == rank else -1 for r in range(SIZE)]
    dist.all_to_all_single(out := torch.full((4,), -1), torch.arange(4), [1, 1, 2], [2, 1, 1])
    assert out.tolist() == [-1, 2, -1, -1]  # on rank 1
    for root in (0, rank):
        dist.broadcast(x := torch.tensor([root]), root)
        assert x.item() == root
    dist.all_reduce(x := torch.tensor([True]), dist.ReduceOp.BAND)
    dist.barrier()
    assert x.item() and pg.get_active_ranks(group).tolist() == [int(r == rank) for r in range(SIZE)]


def recovers(rank, path, url, auto, joins):
    group = mooncake_group(rank, path, url, f"mooncake-14-{auto}", SIZE, SIZE, joins, auto, auto)
    if joins:
        work_alone(group)
        pg.join_group(group)
    else:
        assert summed(group, rank + 1) == (6, True, [0] * SIZE)
        epoch = pg.get_current_epoch(group)
        tell("founded")
        told()
        if rank == 1:
            die()
        assert summed(group, rank + 1) == (4, False, [0, 1, 0])
        assert pg.get_active_ranks(group).tolist() == ([1, 0, 1] if auto else [1, 1, 1])
        work = dist.isend(torch.zeros(1), 1)
        work.wait()
        assert not pg.get_local_success(work) and pg.get_failed_ranks_hint(work).tolist() == [0, 1, 0]
        if auto:
            assert pg.sync_after_failure(group).status == pg.SyncAfterFailureStatus.NoPending
        else:
            assert pg.sync_after_failure(group).status == pg.SyncAfterFailureStatus.Reconciled
            assert summed(group, rank + 1) == (4, False, [0, 1, 0])
            assert pg.deactivate_ranks(group, [1]).status == pg.ProposalStatus.Applied
        assert summed(group, rank + 1) == (4, True, [0] * SIZE)
        options = torch._C._distributed_c10d.BroadcastOptions()
        options.asyncOp = False
        work = group.broadcast([torch.ones(1)], options)  # whose caller waits at once
        work.wait()
        assert pg.get_local_success(work)
        assert pg.get_active_ranks(group).tolist() == [1, 0, 1] and pg.get_num_synced_ranks(group) == 2
        ready = torch.zeros(1)
        while not ready.item():
            ready = torch.tensor([float(pg.get_peer_state(group, [1])[0])])
            dist.all_reduce(ready, dist.ReduceOp.MIN)
        answer = pg.activate_ranks(group, [1])
        assert answer.status == pg.ProposalStatus.Applied and answer.new_epoch > epoch and answer.reject_reason == ""
    assert summed(group, rank + 1) == (6, True, [0] * SIZE)
    if rank == 2:  # it leaves, and the same process comes back
        assert pg.deactivate_ranks(group, [2]).status == pg.ProposalStatus.Applied
        pg.join_group(group)
    else:
        while not pg.get_peer_state(group, [2])[0] or 2 in group.covey.view().members:
            time.sleep(0.01)
        assert pg.activate_ranks(group, [2]).status == pg.ProposalStatus.Applied
    assert summed(group, rank + 1) == (6, True, [0] * SIZE)
    dist.destroy_process_group()


@pytest.mark.parametrize("auto", [True, False], ids=["is_left_out", "is_expected_until_it_is_taken_out"])
def test_a_lost_rank(children, store, tmp_path, auto):
    path = str(tmp_path / "store")
    for rank in range(SIZE):
        children.spawn(rank, recovers, path, store, auto, False)
    for rank in range(SIZE):
        children.hear(rank, "founded")
    children.tell(1, "die")  # the others have their sum
    assert children.result(1, killed=True) is None
    for rank in (0, 2):
        children.tell(rank, "it is dead")
    children.spawn(1, recovers, path, store, auto, True)
    children.results(SIZE)

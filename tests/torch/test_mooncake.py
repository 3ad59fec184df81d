# SPDX-License-Identifier: Apache-2.0
"""covey.compat.mooncake as Mooncake 0.3.14: a joiner alone, ranks that are taken out and come back, what a work tells."""

import os
import time

import torch
import torch.distributed as dist
from conftest import die

from covey.compat import mooncake as pg

_context = torch.multiprocessing.get_context("spawn")
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


def recovers(pipe, rank, path, url, auto, joins):
    torch.set_num_threads(1)
    os.environ.update(COVEY_STORE=url, COVEY_GROUP=f"mooncake-14-{auto}", COVEY_HANG_MS="5000")
    pg.install()
    dist.init_process_group("mooncake-cpu", store=dist.FileStore(path, -1), rank=rank, world_size=SIZE,
                            pg_options=pg.MooncakeBackendOptions(SIZE, joins, auto, auto))
    group = dist.group.WORLD
    if joins:
        work_alone(group)
        pg.join_group(group)
    else:
        assert summed(group, rank + 1) == (6, True, [0] * SIZE)
        epoch = pg.get_current_epoch(group)
        pipe.send("founded")
        if rank == 1:
            die()
        pipe.recv()
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
    pipe.send("fine")
    dist.destroy_process_group()


def recover(store, path, auto):
    running = {}

    def start(rank, joins):
        pipe, child = _context.Pipe()
        process = _context.Process(target=recovers, daemon=True, args=(child, rank, path, store, auto, joins))
        process.start()
        child.close()
        running[rank] = process, pipe

    def hear(rank, word):
        assert running[rank][1].poll(120) and running[rank][1].recv() == word

    try:
        for rank in range(SIZE):
            start(rank, False)
        for rank in range(SIZE):
            hear(rank, "founded")
        running[1][0].join()
        for rank in (0, 2):
            running[rank][1].send("it is dead")
        start(1, True)
        for rank in range(SIZE):
            hear(rank, "fine")
    finally:
        for process, _ in running.values():
            process.kill()


def test_a_lost_rank_is_left_out(store, tmp_path):
    recover(store, str(tmp_path / "store"), True)


def test_a_lost_rank_is_expected_until_it_is_taken_out(store, tmp_path):
    recover(store, str(tmp_path / "store"), False)

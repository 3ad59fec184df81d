# SPDX-License-Identifier: Apache-2.0
"""Operations on devices: types, streams, captures across a death and a replacement, allocators, losses."""

import os
import time

import pytest
import torch
import torch.distributed as dist
from children import die

import covey.torch

if torch.cuda.device_count() < 2:
    pytest.skip("two devices are needed", allow_module_level=True)

from test_operations import values
from test_training import losses, model

WORLD = 2
TYPES = [torch.int8, torch.int32, torch.int64, torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.bool,
         torch.complex64]


def both(make):
    return [make(r) for r in range(WORLD)]


def moves_and_sums(group):
    rank = group.rank()
    for dtype in TYPES:
        everyone = both(lambda r: values(r, (5, 7), dtype))
        mine = everyone[rank].cuda()
        want = everyone[0] | everyone[1] if dtype is torch.bool else everyone[0] + everyone[1]
        got = mine.clone()
        dist.all_reduce(got)
        assert torch.equal(got.cpu(), want), dtype
        work = dist.all_reduce(got := mine.clone(), async_op=True)
        work.wait()
        assert torch.equal(got.cpu(), want) and work.ranks == {0, 1}, dtype
        dist.broadcast(got := mine.clone(), 1)
        assert torch.equal(got.cpu(), everyone[1]), dtype
        dist.all_gather(outs := both(lambda r: torch.empty_like(mine)), mine)
        assert all(torch.equal(a.cpu(), b) for a, b in zip(outs, everyone)), dtype
        dist.all_to_all_single(got := torch.empty((4, 3), dtype=dtype, device="cuda"), values(rank, (4, 3), dtype, 1).cuda())
        want = torch.cat(both(lambda r: values(r, (4, 3), dtype, 1)[2 * rank: 2 * rank + 2]))
        assert torch.equal(got.cpu(), want), dtype
        rows = [1, 3] if rank == 0 else [2, 2]
        back = [1, 2] if rank == 0 else [3, 2]
        got = torch.empty((sum(back), 3), dtype=dtype, device="cuda")
        dist.all_to_all_single(got, values(rank, (4, 3), dtype, 2).cuda(), back, rows)
        first = values(0, (4, 3), dtype, 2)
        second = values(1, (4, 3), dtype, 2)
        assert torch.equal(got.cpu(), torch.cat([first[:1], second[:2]] if rank == 0 else [first[1:], second[2:]])), dtype
        if dtype is not torch.bool:
            dist.reduce_scatter_tensor(got := torch.empty(7, dtype=dtype, device="cuda"), values(rank, (2, 7), dtype).cuda())
            assert torch.equal(got.cpu(), sum(both(lambda r: values(r, (2, 7), dtype)))[rank]), dtype
        for count in (10, 3_000_000):
            got = torch.empty(count, dtype=dtype, device="cuda")
            sent = values(rank, (count,), dtype).cuda()
            for work in dist.batch_isend_irecv([dist.P2POp(dist.isend, sent, 1 - rank),
                                                dist.P2POp(dist.irecv, got, 1 - rank)]):
                work.wait()
            assert torch.equal(got.cpu(), values(1 - rank, (count,), dtype)), dtype
    objects = [None] * WORLD
    dist.all_gather_object(objects, rank)
    dist.barrier()
    average = torch.full((9,), float(rank), device="cuda")
    dist.all_reduce(average, dist.ReduceOp.AVG)
    scaled = torch.ones(9, device="cuda", dtype=torch.bfloat16)
    dist.all_reduce(scaled, dist._make_nccl_premul_sum(0.5))
    host = torch.ones(3)
    dist.all_reduce(host)
    assert objects == [0, 1] and average[0].item() == 0.5 and scaled[0].item() == 1 and host[0].item() == 2
    return True


def streams(group):
    """Operations on two streams and on that of the group, each behind the last."""
    other = torch.cuda.Stream()
    x, y = torch.ones(1 << 20, device="cuda"), torch.ones(1 << 10, device="cuda")
    works = []
    for i in range(50):
        dist.all_reduce(x, dist.ReduceOp.AVG)
        with torch.cuda.stream(other):
            dist.all_reduce(y, dist.ReduceOp.AVG)
        works.append(dist.all_reduce(x, dist.ReduceOp.AVG, async_op=True))
        for work in works[-1:]:
            work.wait()
    torch.cuda.synchronize()
    return bool((x == 1).all() and (y == 1).all())


def freed(group):
    """Memory that is freed right after the call is not given out while the operation runs."""
    for i in range(100):
        x = torch.full((1 << 18,), float(i), device="cuda")
        work = dist.all_reduce(x, async_op=True)
        out = x
        del x
        junk = torch.full((1 << 18,), -1.0, device="cuda")
        work.wait()
        del work, junk
        assert bool((out == 2 * i).all()), i
    return True


def trains(group):
    from torch.nn.parallel import DistributedDataParallel

    torch.cuda.set_device(group.rank())
    nccl = dist.new_group(backend="nccl")
    found = []
    for pg in (group, nccl):
        net = DistributedDataParallel(model().cuda(), device_ids=[group.rank()], process_group=pg)
        found.append(_losses(net, group.rank()))
    return found[0] == found[1]


def _losses(net, rank):
    device = torch.device("cuda", rank)
    with device:
        return losses(net, rank)


def shards(group):
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.fsdp import fully_shard

    nccl = dist.new_group(backend="nccl")
    found = []
    for pg in (group, nccl):
        mesh = DeviceMesh.from_group(pg, "cuda", mesh_dim_names=("dp",))
        net = model().cuda()
        for layer in (net[0], net[2]):
            fully_shard(layer, mesh=mesh)
        found.append(_losses(fully_shard(net, mesh=mesh), group.rank()))
    return found[0] == found[1]


@pytest.mark.parametrize("function", [moves_and_sums, streams, freed, trains, shards], ids=lambda f: f.__name__)
def test_two_devices(ranks, function):
    assert ranks.run(WORLD, function) == [True] * WORLD


@pytest.mark.parametrize("allocator", ["expandable_segments:True", "backend:cudaMallocAsync"])
def test_allocators(ranks, allocator, monkeypatch):
    monkeypatch.setenv("PYTORCH_CUDA_ALLOC_CONF", allocator)
    monkeypatch.setenv("PYTORCH_ALLOC_CONF", allocator)
    assert ranks.run(WORLD, freed) == [True] * WORLD


def test_devices_renumbered(ranks, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1,0")
    assert ranks.run(WORLD, streams) == [True] * WORLD


def fails(group):
    """The exception comes at the same call on all survivors."""
    x = torch.ones(1000, device="cuda")
    dist.all_reduce(x)
    if group.rank() == 1:
        torch.cuda.synchronize()
        die()
    with pytest.raises(RuntimeError, match="PEER"):
        for step in range(1000):
            dist.all_reduce(x)
    with pytest.raises(covey.errors.PeerError):
        covey.torch.check()
    covey.torch.admit()
    y = torch.full((4,), 3.0, device="cuda")
    dist.all_reduce(y)
    covey.torch.check()
    return y[0].item()


def test_a_loss_raises(ranks):
    assert ranks.run(WORLD, fails, killed=[1]) == [3.0, None]


def replays(group, folder, joins):
    """A graph is captured once. Rank 1 dies, the survivor replays alone; a replacement comes, and has its own graph."""
    x, out = torch.ones(1000, device="cuda"), torch.zeros(1000, device="cuda")
    if joins:
        covey.torch.admit()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out.copy_(x)
        dist.all_reduce(out)
    seen = []
    for step in range(100000):
        if not joins:
            covey.torch.admit()
        graph.replay()
        torch.cuda.synchronize()
        seen.append(out[0].item())
        if not joins and group.rank() == 1 and step == 10:
            open(os.path.join(folder, "gone"), "w").close()
            die()
        if joins:
            break
        if seen[-1] == 2 and 1 in seen:
            break
        time.sleep(0.002)
    return seen[-1]


def test_a_captured_operation_outlives_a_death(ranks, tmp_path):
    for rank in range(WORLD):
        ranks.start(rank, WORLD, replays, str(tmp_path), False, on_loss="continue")
    assert ranks.result(1, killed=True) is None
    ranks.start(1, WORLD, replays, str(tmp_path), True, on_loss="continue", is_extension=True)
    assert ranks.results(WORLD) == [2.0, 2.0]

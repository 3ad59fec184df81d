# SPDX-License-Identifier: Apache-2.0
"""Every operation on host memory, against gloo in the same processes, and wrong arguments."""

from datetime import timedelta

import pytest
import torch
import torch.distributed as dist

WORLD = 3
TYPES = [torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.float16, torch.bfloat16, torch.float32,
         torch.float64]
MOVED = TYPES + [torch.bool, torch.complex64, torch.complex128, torch.float8_e4m3fn, torch.float8_e5m2, torch.uint16]


def values(rank, shape, dtype, seed=0):
    """Small whole numbers, so that all sums are exact; what moves only has any bits."""
    generator = torch.Generator().manual_seed(100 * seed + rank)
    numbers = torch.randint(1, 4, shape, generator=generator)
    if dtype is torch.bool:
        return numbers > 2
    if dtype.is_complex:
        return torch.complex(numbers.double(), -numbers.double()).to(dtype)
    return numbers.to(torch.float32).to(dtype)


def all_values(shape, dtype, seed=0):
    return [values(r, shape, dtype, seed) for r in range(WORLD)]


def same(a, b):
    width = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[a.element_size()] if not a.is_complex() else None
    if width is None:
        return torch.equal(a, b)
    return a.dtype == b.dtype and torch.equal(a.contiguous().view(width), b.contiguous().view(width))


def reductions(group):
    gloo = dist.new_group(backend="gloo")
    rank = group.rank()
    for dtype in TYPES:
        for op in (dist.ReduceOp.SUM, dist.ReduceOp.PRODUCT, dist.ReduceOp.MIN, dist.ReduceOp.MAX):
            mine = values(rank, (5, 7), dtype)
            want = torch.stack(all_values((5, 7), dtype)).double()
            want = {dist.ReduceOp.SUM: want.sum(0), dist.ReduceOp.PRODUCT: want.prod(0), dist.ReduceOp.MIN: want.amin(0),
                    dist.ReduceOp.MAX: want.amax(0)}[op].to(dtype)
            got = mine.clone()
            dist.all_reduce(got, op)
            assert same(got, want), (dtype, op)
            got = mine.clone()
            dist.reduce(got, 1, op)
            assert same(got, want if rank == 1 else mine), (dtype, op)
            part = torch.empty(7, dtype=dtype)
            dist.reduce_scatter_tensor(part, values(rank, (WORLD, 7), dtype), op)
            parts = torch.stack(all_values((WORLD, 7), dtype)).double()
            parts = {dist.ReduceOp.SUM: parts.sum(0), dist.ReduceOp.PRODUCT: parts.prod(0),
                     dist.ReduceOp.MIN: parts.amin(0), dist.ReduceOp.MAX: parts.amax(0)}[op].to(dtype)
            assert same(part, parts[rank]), (dtype, op)
    for dtype in (torch.uint8, torch.int32, torch.int64):
        for op in (dist.ReduceOp.BAND, dist.ReduceOp.BOR, dist.ReduceOp.BXOR):
            got, want = values(rank, (9,), dtype), values(rank, (9,), dtype)
            dist.all_reduce(got, op)
            dist.all_reduce(want, op, group=gloo)
            assert same(got, want), (dtype, op)
    turned = torch.arange(12, dtype=torch.int32).reshape(3, 4).t()
    dist.all_reduce(again := turned.clone(memory_format=torch.preserve_format), dist.ReduceOp.BOR)
    assert not again.is_contiguous() and torch.equal(again, turned)
    average = values(rank, (9,), torch.float32)
    dist.all_reduce(average, dist.ReduceOp.AVG)
    assert torch.allclose(average, torch.stack(all_values((9,), torch.float32)).mean(0))
    scaled = values(rank, (9,), torch.float32)
    dist.all_reduce(scaled, dist._make_nccl_premul_sum(0.5))
    assert torch.equal(scaled, torch.stack(all_values((9,), torch.float32)).sum(0) / 2)
    flags = values(rank, (20,), torch.bool)
    dist.all_reduce(flags)
    assert torch.equal(flags, torch.stack(all_values((20,), torch.bool)).any(0))
    number = values(rank, (4,), torch.complex64)
    dist.all_reduce(number)
    assert torch.equal(number, torch.stack(all_values((4,), torch.complex64)).sum(0))
    pair = [values(rank, (3,), torch.float32), values(rank, (4,), torch.float32)]
    dist.all_reduce_coalesced(pair)
    assert torch.equal(pair[1], torch.stack(all_values((4,), torch.float32)).sum(0))
    striped = torch.ones(2, 3, 4, 4).to(memory_format=torch.channels_last)
    dist.all_reduce(striped)
    assert bool((striped == WORLD).all())
    return True


def moves(group):
    rank = group.rank()
    for dtype in MOVED:
        mine, everyone = values(rank, (2, 5), dtype), all_values((2, 5), dtype)
        got = mine.clone()
        dist.broadcast(got, 2)
        assert same(got, everyone[2]), dtype
        outs = [torch.empty_like(mine) for _ in range(WORLD)]
        dist.all_gather(outs, mine)
        assert all(same(a, b) for a, b in zip(outs, everyone)), dtype
        whole = torch.empty((2 * WORLD, 5), dtype=dtype)
        dist.all_gather_into_tensor(whole, mine)
        assert all(same(a, b) for a, b in zip(whole.chunk(WORLD), everyone)), dtype
        outs = [torch.empty_like(mine) for _ in range(WORLD)]
        dist.gather(mine, outs if rank == 1 else None, 1)
        assert rank != 1 or all(same(a, b) for a, b in zip(outs, everyone)), dtype
        out = torch.empty_like(mine)
        dist.scatter(out, everyone if rank == 0 else None, 0)
        assert same(out, mine), dtype
        sent = values(rank, (WORLD, 4), dtype, 1)
        got = torch.empty_like(sent)
        dist.all_to_all_single(got, sent)
        assert all(same(got[r], values(r, (WORLD, 4), dtype, 1)[rank]) for r in range(WORLD)), dtype
        uneven = [values(rank, (r + rank, 3), dtype, 2 + r) for r in range(WORLD)]
        outs = [torch.empty((rank + r, 3), dtype=dtype) for r in range(WORLD)]
        dist.all_to_all(outs, uneven)
        assert all(same(outs[r], values(r, (rank + r, 3), dtype, 2 + rank)) for r in range(WORLD)), dtype
        rows = [r + rank for r in range(WORLD)]
        got = torch.empty((sum(rows), 3), dtype=dtype)
        dist.all_to_all_single(got, torch.cat(uneven), rows, rows)
        assert same(got, torch.cat(outs)), dtype
        different = [torch.empty((r + 1, 3), dtype=dtype) for r in range(WORLD)]
        dist.all_gather(different, values(rank, (rank + 1, 3), dtype))
        assert all(same(different[r], values(r, (r + 1, 3), dtype)) for r in range(WORLD)), dtype
        right, left = (rank + 1) % WORLD, (rank - 1) % WORLD
        got = torch.empty_like(mine)
        for work in dist.batch_isend_irecv([dist.P2POp(dist.isend, mine, right), dist.P2POp(dist.irecv, got, left)]):
            work.wait()
        assert same(got, everyone[left]), dtype
    return True


def no_elements(group):
    """Tensors of no elements have no address."""
    rank, none, some = group.rank(), torch.empty(0, 5), torch.full((2, 5), float(group.rank()))
    for _ in range(3):
        for root in range(WORLD):
            dist.broadcast(none, root)
            dist.reduce(none, root)
            dist.gather(none, [none.clone() for _ in range(WORLD)] if rank == root else None, root)
            dist.scatter(none, [none.clone() for _ in range(WORLD)] if rank == root else None, root)
        dist.all_reduce(none)
        dist.all_reduce(torch.empty(0, dtype=torch.int64), dist.ReduceOp.BOR)
        dist.all_reduce_coalesced([none, torch.empty(0)])
        dist.all_gather([none.clone() for _ in range(WORLD)], none)
        dist.all_gather_into_tensor(torch.empty(0, 5), none)
        dist.reduce_scatter_tensor(torch.empty(0, 5), none)
        dist.reduce_scatter(torch.empty(0, 5), [none.clone() for _ in range(WORLD)])
        dist.all_to_all([none.clone() for _ in range(WORLD)], [none] * WORLD)
        dist.all_to_all_single(torch.empty(0, 5), none)
        dist.all_to_all_single(torch.empty(0, 5), none, [0] * WORLD, [0] * WORLD)
        works = [dist.isend(none, (rank + 1) % WORLD), dist.irecv(none.clone(), (rank - 1) % WORLD)]
        for work in works:
            work.wait()
        different = [torch.empty(2 * (r > 0), 5) for r in range(WORLD)]  # rank 0 has nothing
        dist.all_gather(different, some if rank else none)
        assert all(bool((different[r] == r).all()) for r in range(WORLD))
        sends = [2 * (rank > 0 and r > 0) for r in range(WORLD)]
        got = torch.full((sum(sends), 5), -1.0)
        dist.all_to_all_single(got, torch.full((sum(sends), 5), float(rank)), sends, sends)
        assert got[:, 0].tolist() == ([1.0, 1.0, 2.0, 2.0] if rank else [])
    return True


def the_rest(group):
    rank = group.rank()
    objects = [None] * WORLD
    dist.all_gather_object(objects, {"rank": rank})
    assert objects == [{"rank": r} for r in range(WORLD)]
    things = ["a", 2] if rank == 0 else [None, None]
    dist.broadcast_object_list(things, 0)
    assert things == ["a", 2]
    work = dist.all_reduce(x := torch.ones(5), async_op=True)
    assert work.wait() and work.is_completed() and work.is_success()
    assert work.ranks == frozenset(range(WORLD)) and work.epoch >= 1 and bool((x == WORLD).all())
    future = dist.all_reduce(y := torch.ones(5), async_op=True).get_future()
    assert torch.equal(future.then(lambda f: f.value()[0] * 2).wait(), 2 * y)
    def nested(f):
        return dist.all_reduce(torch.ones(3), async_op=True).get_future().wait()[0] + f.value()[0]

    future = dist.all_reduce(torch.ones(3), async_op=True).get_future().then(nested)
    assert bool((future.wait() == 2 * WORLD).all())
    if rank == 0:  # one of them from any source, the other by name
        first = dist.recv(a := torch.empty(3), tag=7)
        dist.recv(b := torch.empty(3), src=3 - first, tag=7)
        assert {first, 3 - first} == {1, 2} and a[0].item() == first and b[0].item() == 3 - first
    else:
        dist.send(torch.full((3,), float(rank)), 0, tag=7)
    with dist._coalescing_manager(async_ops=True) as batch:
        tensors = [torch.ones(n) for n in (1, 2, 3)]
        for t in tensors:
            dist.all_reduce(t)
    batch.wait()
    assert all(bool((t == WORLD).all()) for t in tensors)
    dist.barrier()
    group.monitored_barrier(timedelta(seconds=60))
    some = dist.new_group([0, 2])
    if rank != 1:
        dist.all_reduce(z := torch.ones(1), group=some)
        assert z.item() == 2 and dist.get_rank(some) == rank // 2
    part = group.split_group([[0, 1], [2]][rank // 2], group_name=f"part{rank // 2}")
    dist.all_reduce(u := torch.ones(1), group=part)
    assert u.item() == 2 - rank // 2
    part.shutdown()
    if rank == 2:  # it comes when rank 0 has given up
        dist.recv(torch.empty(1), src=0, tag=9)
    with pytest.raises(dist.DistBackendError, match=r"ranks \[(1, )?2\] did not" if rank == 0 else "rank 0 did not"):
        group.monitored_barrier(timedelta(seconds=0.3))
    if rank == 0:
        dist.send(torch.ones(1), 2, tag=9)
    group.monitored_barrier(timedelta(seconds=60), True)
    return True


def wrong(group):
    x = torch.ones(4, 4)
    with pytest.raises(ValueError, match="contiguous"):
        dist.broadcast(torch.ones(4, 8)[:, ::2], 0)
    with pytest.raises(TypeError, match="no reduction"):
        dist.all_reduce(torch.ones(4), dist.ReduceOp.BXOR)
    with pytest.raises(TypeError, match="no reduction"):
        dist.all_reduce(torch.ones(4).to(torch.float8_e4m3fn))
    with pytest.raises(ValueError, match="blocks of 16"):
        group._allgather_base(torch.empty(5), x)
    with pytest.raises((ValueError, RuntimeError)):
        dist.all_to_all_single(torch.empty(4), torch.ones(3), [2, 1, 1], [1, 1, 2])
    with pytest.raises(TypeError, match="both must be alike"):
        group._reduce_scatter_base(torch.empty(4, dtype=torch.float64), torch.ones(4 * WORLD))
    with pytest.raises(TypeError, match="both must be alike"):
        group.alltoall_base(torch.empty(WORLD, dtype=torch.int8), torch.ones(WORLD))
    with pytest.raises(ValueError, match="on_loss"):
        import covey.torch

        covey.torch.Options(on_loss="maybe")
    dist.all_reduce(x)
    return bool((x == WORLD).all())


@pytest.mark.parametrize("function", [reductions, moves, no_elements, the_rest, wrong], ids=lambda f: f.__name__)
def test_host(ranks, function):
    assert ranks.run(WORLD, function, device="none") == [True] * WORLD


def names(group):
    """Arguments by torch's names, in each of its forms."""
    rank, one = group.rank(), torch.ones(2)
    gloo = dist.new_group(backend="gloo")
    for pg in (gloo, group):
        x = one * (rank + 1)
        pg.broadcast([x]).wait()
        assert x[0] == 1
        x = one * (rank + 1)
        pg.broadcast(x, root=2).wait()
        pg.broadcast(tensor=x, root=2, timeout=timedelta(seconds=60)).wait()
        assert x[0] == 3
        pg.allreduce(tensor=x, op=dist.ReduceOp.MAX).wait()
        pg.allreduce(tensors=[x], opts=dist.AllreduceOptions()).wait()
        assert x[0] == 9
        pg.reduce(tensor=x, root=1, op=dist.ReduceOp.MAX, timeout=timedelta(seconds=60)).wait()
        outs = [torch.empty(2) for _ in range(WORLD)]
        pg.allgather(output_tensors=outs, input_tensor=one * rank).wait()
        assert [t[0].item() for t in outs] == [0, 1, 2]
        pg.gather(output_tensors=outs if rank == 1 else [], input_tensor=one * rank, root=1).wait()
        pg.scatter(output_tensor=x, input_tensors=outs if rank == 1 else [], root=1).wait()
        assert x[0] == rank
        if pg is group:  # gloo of torch 2.11 has none
            pg.alltoall(output_tensors=outs, input_tensors=[one * rank for _ in range(WORLD)]).wait()
            assert [t[0].item() for t in outs] == [0, 1, 2]
        pg.reduce_scatter(output=x, input=[one] * WORLD, op=dist.ReduceOp.SUM).wait()
        assert x[0] == WORLD
        pg.barrier(timeout=timedelta(seconds=60)).wait()
    with pytest.raises(TypeError, match="unexpected"):
        group.broadcast([one], rot=1)
    return True


def lists(group):
    """Tensors that share memory are reduced once, and lists that do not fit are refused."""
    gloo, rank = dist.new_group(backend="gloo"), group.rank()
    for pg in (gloo, group):
        t = torch.arange(4, dtype=torch.float32) + rank
        pg.allreduce_coalesced([t, t]).wait()
        assert t.tolist() == [3, 6, 9, 12]
    t = torch.arange(4, dtype=torch.float32) + rank
    group.allreduce_coalesced([t, t[1:3], t[3:]]).wait()
    assert t.tolist() == [3, 6, 9, 12]
    fits = [[torch.empty(2), torch.empty(3)] for _ in range(WORLD)]
    group.allgather_coalesced(fits, [torch.ones(2) * rank, torch.ones(3) * rank]).wait()
    assert [t.tolist() for t in fits[1]] == [[1.0] * 2, [1.0] * 3]
    for outs in (fits[:-1], [[torch.empty(2)] for _ in range(WORLD)], [[torch.empty(3), torch.empty(2)]] * WORLD):
        with pytest.raises(ValueError, match="lists"):
            group.allgather_coalesced(outs, [torch.ones(2), torch.ones(3)])
    with pytest.raises(TypeError, match="one type"):
        group.allgather_coalesced(fits, [torch.ones(2), torch.ones(3, dtype=torch.int64)])
    with pytest.raises(TypeError, match="alike"):
        group.allgather([[torch.empty(2, dtype=torch.int64)] * WORLD], [torch.ones(2)])
    return True


def sparse(group):
    """As gloo does it, and with DDP."""
    gloo, rank = dist.new_group(backend="gloo"), group.rank()
    for width in ((), (2,)):
        found = []
        for pg in (gloo, group):
            indices = torch.tensor([[0, rank, rank + 1], [0, 1, 1]])[:, : rank + 1]
            t = torch.sparse_coo_tensor(indices, torch.full((rank + 1, *width), float(rank + 1)), (4, 2, *width))
            dist.all_reduce(t, group=pg)
            found.append(t)
        assert found[1].is_coalesced() and torch.equal(found[0].indices(), found[1].indices())
        assert torch.equal(found[0].values(), found[1].values())
    with pytest.raises(TypeError, match="SUM"):
        dist.all_reduce(found[1], dist.ReduceOp.MAX)
    trained = []
    for pg in (gloo, group):
        torch.manual_seed(0)
        net = torch.nn.parallel.DistributedDataParallel(torch.nn.EmbeddingBag(9, 2, sparse=True, mode="sum"), process_group=pg)
        net(torch.tensor([[rank, 2 * rank]])).sum().backward()
        trained.append(net.module.weight.grad.to_dense())
    assert torch.equal(*trained)
    return True


@pytest.mark.parametrize("function", [names, lists, sparse], ids=lambda f: f.__name__)
def test_as_gloo(ranks, function):
    assert ranks.run(WORLD, function, device="none") == [True] * WORLD


def waits_at_once(group):
    """Work objects of collectives whose caller waits at once are decided, with their outputs, when the call returns."""
    c10d = torch._C._distributed_c10d
    x, y, z = torch.ones(2), torch.zeros(2), torch.zeros(2)
    calls = [(group.allreduce, ([x],), dist.AllreduceOptions), (group.allreduce, ([x.bool()],), dist.AllreduceOptions),
             (group.broadcast, ([x],), c10d.BroadcastOptions), (group._allgather_base, (y, x), c10d.AllgatherOptions),
             (group.allgather, ([[z]], [x]), c10d.AllgatherOptions),
             (group._reduce_scatter_base, (y, x), c10d.ReduceScatterOptions),
             (group.alltoall_base, (y, x, [], []), c10d.AllToAllOptions),
             (group.gather, ([[y]], [x]), c10d.GatherOptions), (group.scatter, ([y], [[x]]), c10d.ScatterOptions)]
    for call, tensors, kind in calls:
        options = kind()
        options.asyncOp = False
        y.zero_(), z.zero_()
        work = call(*tensors, options)
        assert work.outcomes[0].ranks == {0} and work.ranks == {0}, call.__name__
        assert call.__name__ in ("allreduce", "broadcast") or 1 in (y[1], z[1]), call.__name__
        assert all(t.tolist() for t in work.result()) and work.get_future().done()
    return True


def test_a_call_that_waits_at_once_is_decided(ranks):
    assert ranks.run(1, waits_at_once, device="none") == [True]

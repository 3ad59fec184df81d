# SPDX-License-Identifier: Apache-2.0
"""Torch's tensors on devices: every operation, a captured graph across a death, dispatch and combine."""

import time

import pytest

torch = pytest.importorskip("torch")
if not torch.cuda.is_available():
    pytest.skip("no device", allow_module_level=True)

import covey
from children import die

WORLD = 2
DEVICES = torch.cuda.device_count()
TYPES = [torch.int32, torch.int64, torch.float16, torch.bfloat16, torch.float32, torch.float64]


def run(ranks, function, *arguments, world=WORLD, killed=()):
    for rank in range(world):
        ranks.start(rank, on_device, function, *arguments, world=world, device=str(rank % DEVICES))
    return ranks.results(world, killed)


def on_device(group, function, *arguments):
    torch.cuda.set_device(group.rank % DEVICES)
    return function(group, *arguments)


def done(group):
    """The outcome of the last operation, when the device has passed it."""
    torch.cuda.synchronize()
    outcome = group.device_result()
    assert outcome.status == 0, outcome
    return outcome


def collectives(group, dtype):
    rank, count = group.rank, 3000
    own = torch.full((count,), rank + 1, dtype=dtype, device="cuda")
    recv = torch.empty_like(own)
    group.allreduce(own, recv)
    assert done(group).ranks == {0, 1} and (recv == 3).all()
    group.allreduce(own, recv, "max", stream=torch.cuda.Stream())
    done(group)
    assert (recv == 2).all()
    table = torch.empty((WORLD, count), dtype=dtype, device="cuda")
    group.allgather(own, table)
    done(group)
    assert (table[0] == 1).all() and (table[1] == 2).all()
    other = torch.empty_like(table)
    group.alltoall(table, other)
    done(group)
    assert (other == rank + 1).all()
    group.reduce_scatter(table, recv)
    done(group)
    assert (recv == 2 * (rank + 1)).all()
    at = own.clone()
    group.broadcast(at, 1)
    done(group)
    assert (at == 2).all()
    return True


@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_collectives(ranks, dtype):
    assert run(ranks, collectives, dtype) == [True, True]


def wrong(group):
    here, there = torch.ones(4), torch.ones(4, device="cuda")
    with pytest.raises(TypeError, match="both must be alike"):
        group.allreduce(here, there)
    with pytest.raises(ValueError, match="contiguous"):
        group.allreduce(torch.ones(4, 4, device="cuda").T)
    group.allreduce(here)
    return bool((here == group.size).all())


def test_memory_of_both_kinds(ranks):
    assert run(ranks, wrong) == [True, True]


def graph(group):
    """The graph is captured once; rank 1 dies; the survivor's next replays have one contributor."""
    x = torch.ones(1000, device="cuda")
    recv = torch.zeros_like(x)
    stream, captured = torch.cuda.Stream(), torch.cuda.CUDAGraph()
    with torch.cuda.graph(captured, stream=stream):
        group.allreduce(x, recv, stream=torch.cuda.current_stream())
    for i in range(50):
        captured.replay()
        done(group)
        assert (recv == WORLD).all()
    if group.rank == 1:
        time.sleep(0.5)
        die()
    since = time.monotonic()
    while not (recv == 1).all():
        assert time.monotonic() - since < 60
        captured.replay()
        outcome = done(group)
    return sorted(outcome.ranks)


def test_a_graph_outlives_a_death(ranks):
    assert run(ranks, graph, killed=[1]) == [[0], None]


def experts(group, preset):
    T, H, K, E = 32, 1024, 2, 4
    torch.manual_seed(group.rank)
    x = torch.randint(-8, 8, (T, H), device="cuda").bfloat16()
    ids = torch.stack([torch.randperm(E)[:K] for _ in range(T)]).int().cuda()
    weights = torch.full((T, K), 0.5, device="cuda")
    with covey.Ep(group, max_tokens=T, hidden=H, top_k=K, experts=E, preset=preset) as ep:
        el, rows = ep.local_experts, ep.rows
        bins = () if preset == "compact" else (el,)
        room = {"packed_x": torch.empty((*bins, rows, H), dtype=torch.bfloat16, device="cuda"),
                "count": torch.zeros(el, dtype=torch.int32, device="cuda"),
                "src_info": torch.empty((*bins, rows), dtype=torch.int32, device="cuda"),
                "range": torch.zeros((*bins, group.size), dtype=torch.int64, device="cuda"),
                "route": torch.empty(ep.route_bytes, dtype=torch.uint8, device="cuda")}
        if preset == "compact":
            room["recv_experts"] = torch.empty((rows, K), dtype=torch.int32, device="cuda")
            room["recv_weights"] = torch.empty((rows, K), dtype=torch.float32, device="cuda")
        routed = ep.dispatch(x, ids, weights, out=room)
        assert done(group).ranks == {0, 1}
        y = routed.x
        if preset == "compact":
            mine = torch.where(routed.recv_experts >= 0, routed.recv_weights, 0).sum(1, keepdim=True)
            y = (y.float() * mine).bfloat16()
        out = torch.empty_like(x)
        ep.combine(y, routed, ids, weights, out=out)
        assert done(group).ranks == {0, 1}
        torch.testing.assert_close(out, x, rtol=0, atol=0)
    return True


@pytest.mark.parametrize("preset", ["ll", "compact"])
def test_dispatch_and_combine(ranks, preset):
    assert run(ranks, experts, preset) == [True, True]

# SPDX-License-Identifier: Apache-2.0
"""Modes of torch that a caller has set reach none of covey's own tensors."""

from contextlib import contextmanager

import pytest
import torch
import torch.distributed as dist

import covey.torch
from covey.ep import Buffer

WORLD, TOKENS = 2, 4


@contextmanager
def default_device():
    torch.set_default_device("meta")
    yield
    torch.set_default_device(None)


@contextmanager
def default_dtype():
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


@contextmanager
def deterministic():
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


def fake():
    from torch._subclasses.fake_tensor import FakeTensorMode

    return FakeTensorMode()


MODES = {"default device": default_device, "default dtype": default_dtype, "deterministic": deterministic,
         "device": lambda: torch.device("meta"), "inference": torch.inference_mode, "fake": fake}


def operations(group, mode):
    """Tensors are made before, so that the mode is there for those of covey alone."""
    rank = group.rank()
    mine, out = torch.full((3,), float(rank)), [torch.empty(3) for _ in range(WORLD)]
    of_all, turned = [torch.full((3,), float(10 * rank + r)) for r in range(WORLD)], torch.ones(2, 3).t() * rank
    bits, message, state = torch.tensor([1 << rank]), torch.empty(3), torch.full((2,), float(rank))
    active, got = torch.zeros(WORLD, dtype=torch.int32), [torch.empty(3) for _ in range(WORLD)]
    with MODES[mode]():
        group._set_active(active)
        dist.all_gather(out, mine)
        dist.all_to_all(got, of_all)
        dist.broadcast(turned, 1)
        dist.all_reduce(bits, dist.ReduceOp.BOR)
        group.monitored_barrier()
        if rank:
            dist.send(mine, 0)
        else:
            assert dist.recv(message) == 1
        covey.torch.admit([state])
    dist.barrier()  # what was made in a mode is written out of it
    assert active.tolist() == [1] * WORLD and bits.item() == 3 and (turned == 1).all()
    assert [t.tolist() for t in got] == [[10.0 * r + rank] * 3 for r in range(WORLD)]
    assert [t.tolist() for t in out] == [[float(r)] * 3 for r in range(WORLD)]
    assert rank or message.tolist() == [1.0] * 3
    return True


@pytest.mark.parametrize("mode", MODES)
def test_operations(ranks, mode):
    assert ranks.run(WORLD, operations, mode, device="none") == [True] * WORLD


def leaves(group):
    """Tensors that need gradients, or were made in inference mode, are written into as C++ does."""
    mine, outs = torch.ones(3), [torch.nn.Parameter(torch.empty(3)) for _ in range(WORLD)]
    dist.all_gather(outs, mine)
    with torch.inference_mode():
        made = [torch.empty(3) for _ in range(WORLD)]
    dist.all_gather(made, mine)
    half = torch.nn.Parameter(torch.ones(3))
    dist.all_reduce(half, dist._make_nccl_premul_sum(0.5))
    assert all((t == 1).all() for t in (*outs, *made, half))
    return True


def test_tensors_that_torch_would_not_write(ranks):
    assert ranks.run(WORLD, leaves, device="none") == [True] * WORLD


def grows(store, rank, mode):
    """The second rank joins the first, which awaits it; then calls in the mode and out of it."""
    x, ids = torch.ones(TOKENS, 128, dtype=torch.bfloat16), torch.zeros(TOKENS, 1, dtype=torch.int64)
    weights, status = torch.ones(TOKENS, 1), torch.zeros(WORLD, dtype=torch.int32)
    stats = torch.zeros(1, dtype=torch.int32)

    def step():
        y, _, handle, _, _ = buffer.dispatch(x, ids, TOKENS, WORLD, use_fp8=False,
                                             cumulative_local_expert_recv_stats=stats)
        return buffer.combine(y, ids, weights, handle)[0]

    with MODES[mode]():
        buffer = Buffer(rank=rank, tcp_store_group=store)
        buffer.update_memory_buffers(WORLD, 1, 1 << 20)
        if rank:
            store.wait(["formed"])
        buffer.connect_ranks([0] if not rank else [0, 1])
        if not rank:
            step()
            store.set("formed", "1")
            buffer.connect_ranks([0, 1])
        step()
        buffer.get_local_buffer_tensor(torch.float32).fill_(1)
    buffer.get_local_buffer_tensor(torch.float32).fill_(0)
    buffer.update_mask_buffer(1 - rank, mask=True)
    buffer.update_mask_buffer(1 - rank, mask=False)
    out = step()
    buffer.query_mask_buffer(status)
    assert status.tolist() == [0] * WORLD and (out == 1).all()
    buffer.barrier()  # no rank ends while another looks
    return True


@pytest.mark.parametrize("mode", [mode for mode in MODES if mode != "fake"])
def test_a_buffer_grows(processes, mode):
    assert processes.run(WORLD, grows, mode) == [True] * WORLD


def counts(group):
    """What CommDebugMode says of each collective, called once."""
    from torch.distributed.tensor.debug import CommDebugMode

    rank, ops = group.rank(), torch.ops.c10d
    mine, parts = torch.ones(3), [torch.empty(3) for _ in range(WORLD)]
    wide, sums = torch.empty(3 * WORLD), torch.ones(3 * WORLD)
    calls = {
        ops.allreduce_: lambda: dist.all_reduce(mine),
        ops.allreduce_coalesced_: lambda: dist.all_reduce_coalesced([mine, torch.ones(2)]),
        ops.broadcast_: lambda: dist.broadcast(mine, 0),
        ops.reduce_: lambda: dist.reduce(mine, 0),
        ops.allgather_: lambda: dist.all_gather(parts, mine),
        ops._allgather_base_: lambda: dist.all_gather_into_tensor(wide, mine),
        ops.allgather_coalesced_: lambda: dist.all_gather_coalesced([[torch.empty(3)] for _ in range(WORLD)], [mine]),
        ops.reduce_scatter_: lambda: dist.reduce_scatter(mine, [torch.ones(3) for _ in range(WORLD)]),
        ops._reduce_scatter_base_: lambda: dist.reduce_scatter_tensor(mine, sums),
        ops.gather_: lambda: dist.gather(mine, parts if rank == 0 else None),
        ops.scatter_: lambda: dist.scatter(mine, parts if rank == 0 else None),
        ops.alltoall_: lambda: dist.all_to_all([torch.empty(3) for _ in range(WORLD)], parts),
        ops.alltoall_base_: lambda: dist.all_to_all_single(wide, sums),
        torch.ops.c10d_functional.all_reduce: lambda: torch.distributed._functional_collectives.all_reduce(mine, "sum", group),
    }
    for op, call in calls.items():
        with CommDebugMode() as mode:
            call()
        assert dict(mode.get_comm_counts()) == {op: 1}, (op, mode.get_comm_counts())
    dist.barrier()
    return True


def test_comm_debug_mode_counts(ranks):
    assert ranks.run(WORLD, counts, device="none") == [True] * WORLD

# SPDX-License-Identifier: Apache-2.0
"""Ctrl-C at every place of a call, and the end of a process at any place: nothing is lost, and close() ends."""

import os
import signal
import subprocess
import sys
import threading

import pytest
import torch
import torch.distributed as dist
from interrupts import Owned, everywhere, needs_places


def operations(group):
    x, y = torch.ones(4), torch.zeros(4)

    def later(start):
        return lambda: start(async_op=True).wait()

    def coalesced():
        with dist._coalescing_manager(async_ops=True) as manager:
            dist.all_reduce(x)
        manager.wait()

    def message():
        work = dist.irecv(y, 0)
        dist.isend(x, 0).wait()
        work.wait()

    return [lambda: dist.all_reduce(x), later(lambda **how: dist.all_reduce(x, **how)), dist.barrier,
            lambda: dist.all_reduce(torch.ones(2, dtype=torch.int64), dist.ReduceOp.BOR),
            later(lambda **how: dist.all_gather([y], x, **how)), lambda: dist.broadcast(x, 0),
            lambda: dist.all_gather_into_tensor(y, x), lambda: dist.reduce_scatter_tensor(y, x),
            lambda: dist.gather(x, [y]), lambda: dist.scatter(y, [x]), lambda: dist.all_to_all([y], [x]), coalesced,
            lambda: dist.all_reduce(x, async_op=True).get_future().wait(), group.monitored_barrier]


def interrupted(group):
    owned = Owned(group.covey)

    def right():
        y, z = torch.ones(3), [torch.zeros(3)]
        dist.all_reduce(y)
        dist.all_gather(z, y)
        assert y.tolist() == z[0].tolist() == [1, 1, 1] and not group.covey._inside

    places = sum(everywhere(call, right) for call in operations(group))
    group.covey.close()
    assert owned.count("work") == 0 and not owned.live
    return places


@needs_places
def test_ctrl_c_in_operations(ranks):
    assert ranks.run(1, interrupted, device="none")[0] > 500


def step(buffer, hook):
    x, ids = torch.ones(4, 128, dtype=torch.bfloat16), torch.zeros(4, 1, dtype=torch.int64)
    rows, _, handle, _, receive = buffer.dispatch(x, ids, 4, 1, use_fp8=False, return_recv_hook=hook)
    if hook:
        receive()
    out, _, receive = buffer.combine(rows, ids, torch.ones(4, 1), handle, return_recv_hook=hook)
    if hook:
        receive()
    return out


def interrupted_buffer(store, rank):
    from covey.ep import Buffer

    owned = Owned()
    buffer = Buffer(rank=rank, tcp_store_group=store, explicitly_destroy=True)
    buffer.update_memory_buffers(1, 1, 1 << 20)
    buffer.connect_ranks([0])

    def right():
        assert (step(buffer, False) == 1).all()

    places = [everywhere(lambda: step(buffer, hook), right) for hook in (False, True)]
    places.append(everywhere(buffer.barrier, right))
    buffer.destroy()
    assert owned.count("work") == 0 and not owned.live
    return min(places)


@needs_places
def test_ctrl_c_in_a_buffer(processes):
    assert processes.run(1, interrupted_buffer)[0] > 10


def destroys_in_a_handler(store, rank, how):
    """Rank 0 does not come to the call of rank 1, which a signal ends."""
    from covey.ep import Buffer

    buffer = Buffer(rank=rank, tcp_store_group=store, explicitly_destroy=True)
    buffer.update_memory_buffers(2, 1, 1 << 20)
    buffer.connect_ranks([0, 1])
    if rank == 0:
        store.wait(["destroyed"])
        return True
    group = buffer.calls.group
    ended = []

    def handler(*_):
        {"destroy": buffer.destroy, "close": group.close, "abort": group.abort}[how]()
        ended.append(how)

    signal.signal(signal.SIGUSR1, handler)

    def kill():
        while not group._inside:
            pass
        os.kill(os.getpid(), signal.SIGUSR1)

    threading.Thread(target=kill).start()
    with pytest.raises(Exception):
        buffer.dispatch(torch.ones(4, 128, dtype=torch.bfloat16), torch.zeros(4, 1, dtype=torch.int64), 4, 2, use_fp8=False)
    store.set("destroyed", "yes")
    return ended == [how]


@pytest.mark.parametrize("how", ["destroy", "close", "abort"])
def test_a_handler_ends_a_buffer(processes, how):
    assert processes.run(2, destroys_in_a_handler, how) == [True, True]


def destroys_the_group_in_a_handler(group):
    ended = []
    if group.rank() == 0:
        work = dist.irecv(torch.ones(1), 1)
        with pytest.raises(RuntimeError):
            work.wait()
        return [True]

    def handler(*_):
        dist.destroy_process_group()
        ended.append(True)

    signal.signal(signal.SIGUSR1, handler)

    def kill():
        while not group.covey._inside:
            pass
        os.kill(os.getpid(), signal.SIGUSR1)

    threading.Thread(target=kill).start()
    with pytest.raises(RuntimeError):
        dist.all_reduce(torch.ones(1))
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)  # the test destroys it
    return ended


def test_a_handler_destroys_the_process_group(ranks):
    assert ranks.run(2, destroys_the_group_in_a_handler, device="none") == [[True], [True]]


ENDS = """
import os, sys, threading, time
import torch, torch.distributed as dist
import covey.torch
dist.init_process_group("covey", init_method="file://{store}", rank=0, world_size=1,
                        pg_options=covey.torch.Options(device="none"))
runs = threading.Event()
def callback(future):
    runs.set()
    dist.all_reduce(torch.ones(1))
    end = time.monotonic() + 1
    while time.monotonic() < end:
        time.sleep(0.001)
    return future.value()
future = dist.all_reduce(torch.ones(3), async_op=True).get_future().then(callback)
runs.wait()
{ends}
"""


@pytest.mark.parametrize("ends", ["pass", "dist.destroy_process_group()", "del future", "dist.group.WORLD.covey.close()",
                                  "dist.irecv(torch.ones(1), 1).get_future()"])
def test_a_process_ends_while_a_callback_runs(tmp_path, ends):
    program = tmp_path / "ends.py"
    program.write_text(ENDS.format(ends=ends, store=tmp_path / "store"))
    done = subprocess.run([sys.executable, str(program)], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr


def reads_at_once(group):
    """Outputs are there as soon as a work says that it is complete, with each way to ask it."""
    rank, size = group.rank(), group.size()
    x = torch.full((1000,), float(rank + 1))
    active = torch.zeros(8, dtype=torch.int32)
    right = [torch.full((1000,), float(r + 1)) for r in range(size)]

    def all_gather(outs):
        return dist.all_gather(outs, x, async_op=True)

    def uneven(outs):
        outs[:] = [torch.full((10 * (r + 1),), -7.0) for r in range(size)]
        return dist.all_gather(outs, x[: 10 * (rank + 1)].contiguous(), async_op=True)

    def gather(outs):
        return dist.gather(x, outs if rank == 0 else None, async_op=True)

    def all_to_all(outs):
        return dist.all_to_all(outs, [x] * size, async_op=True)

    def coalesced(outs):
        return group.allgather_coalesced([[out] for out in outs], [x])

    def folded(outs):
        bits = torch.full((1000,), 1 << rank)
        work = dist.all_reduce(bits, dist.ReduceOp.BOR, async_op=True)
        return work, lambda: (bits == (1 << size) - 1).all()

    def contributors(outs):
        group._set_active(active.zero_())
        active.zero_()
        group._active_known = None
        return dist.all_reduce(torch.ones(3), async_op=True), lambda: active[:size].all()

    asks = {"is_completed": lambda work: work.is_completed(), "is_success": lambda work: work.is_success(),
            "future": lambda work: work.get_future().done()}
    for start in (all_gather, uneven, gather, all_to_all, coalesced, folded, contributors):
        for name, ask in asks.items():
            outs = [torch.full((1000,), -7.0) for _ in range(size)]
            work = start(outs)
            holds = None
            if isinstance(work, tuple):
                work, holds = work
            while not ask(work):
                pass
            if holds:
                assert holds(), (start.__name__, name)
            elif start is not gather or rank == 0:
                assert all(torch.equal(a, b[: len(a)]) for a, b in zip(outs, right)), (start.__name__, name)
            assert work.exception() is None
            work.wait()
        group._active = None
    return True


def test_outputs_are_there_when_a_work_is_complete(ranks):
    assert ranks.run(2, reads_at_once, device="none") == [True, True]

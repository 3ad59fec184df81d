# SPDX-License-Identifier: Apache-2.0
"""What vLLM's elastic path does with NIXL EP's buffer, call by call: it looks for faults, retries, shrinks and grows."""

import os
import time

import pytest
import torch
import torch.distributed as dist
from children import die
from ep_steps import CAPACITY, HIDDEN, PER_RANK, TOKENS, check_out, check_rows, inputs, results


class Manager:
    """Keeps what vLLM keeps: the buffer, how many ranks are connected and active, and the last mask."""

    def __init__(self, rank, world, store):
        from covey.ep import Buffer

        hint = Buffer.get_rdma_size_hint(num_max_dispatch_tokens_per_rank=TOKENS, hidden=HIDDEN, num_ranks=CAPACITY,
                                         num_experts=CAPACITY * PER_RANK)
        self.buffer = Buffer(rank=rank, tcp_store_group=store)
        self.buffer.update_memory_buffers(num_ranks=CAPACITY, num_experts_per_rank=PER_RANK, num_rdma_bytes=hint)
        self.buffer.connect_ranks(list(range(world)))
        self.connected = self.active = world
        self.mask, self.last = torch.zeros(CAPACITY, dtype=torch.int32), None

    def has_fault(self):
        self.buffer.query_mask_buffer(self.mask)
        current = self.mask[: self.active]
        if self.last is None or self.last.shape != current.shape:
            self.last = torch.zeros_like(current)
        return bool((current != self.last).any())

    def clean(self):
        self.buffer.get_local_buffer_tensor(dtype=torch.int8, use_rdma_buffer=True).zero_()
        self.buffer.clean_mask_buffer()
        self.last = None

    def stage(self, world, store):
        """Growth begins: new ranks connect, and stay masked."""
        self.buffer.set_tcp_store_group(store)
        self.buffer.connect_ranks(list(range(self.connected, world)), activate=False)
        self.connected = world

    def commit(self, world):
        if world < self.connected:
            self.buffer.disconnect_ranks(list(range(world, self.connected)))
            self.connected = self.active = world
        for rank in range(self.active, world):
            self.buffer.update_mask_buffer(rank, mask=False)
        self.active = max(self.active, world)

    def layer(self, number, use_fp8, dies=False):
        """One layer of a step."""
        rank, experts = self.buffer.rank, self.active * PER_RANK
        x, ids, weights = inputs(rank, number, experts)
        recv_x, count, handle, _, hook = self.buffer.dispatch(
            x, ids, TOKENS, CAPACITY * PER_RANK, use_fp8=use_fp8, round_scale=False, use_ue8m0=False, async_finish=False,
            return_recv_hook=True)
        hook()
        if dies:
            die()
        self.buffer.query_mask_buffer(self.mask)
        here = [r for r in range(CAPACITY) if not self.mask[r]]
        check_rows(rank * PER_RANK, PER_RANK, recv_x, count, handle, here, number, experts)
        y = results(rank * PER_RANK, recv_x, count)
        out = torch.empty(x.shape, dtype=torch.bfloat16)
        self.buffer.combine(y, ids, weights, handle, async_finish=False, zero_copy=False, return_recv_hook=False, out=out)
        self.buffer.query_mask_buffer(self.mask)
        owners = [r for r in range(CAPACITY) if not self.mask[r]]
        check_out(out, rank, number, experts, PER_RANK, owners, not use_fp8)

    def step(self, number, dies=False):
        """Layers in fp8 and in bf16. Was there a fault?"""
        for layer in range(4):
            self.layer(10 * number + layer, layer % 2 == 0, dies and layer == 2)
        return self.has_fault()


def serves(store, rank, comes):
    """Ranks 0 and 1 of three go on when rank 2 dies: retry, shrink, and grow by a new rank 2."""
    later = dist.PrefixStore("second", store)
    manager = Manager(rank, 3, later if comes else store)
    if comes:
        faults = [manager.step(number) for number in (6, 7)]
        manager.buffer.barrier()
        return faults
    faults = [manager.step(number, dies=(rank, number) == (2, 2)) for number in range(3)]
    manager.buffer.barrier()
    assert faults == [False, False, True] or manager.has_fault()  # a death in the last call may show in the barrier
    manager.clean()  # retry: the fault stays
    assert manager.step(3)
    manager.commit(2)  # the engine shrinks
    assert not manager.step(4)
    manager.stage(3, later)  # and grows
    while 2 not in manager.buffer.calls.group.view().pending:
        time.sleep(0.01)
    assert not manager.step(5)
    manager.commit(3)
    faults = [manager.step(number) for number in (6, 7)]
    manager.buffer.barrier()
    return faults


@pytest.mark.parametrize("early", [True, False])
def test_fault_retry_shrink_and_grow(processes, early):
    for rank in range(3):
        processes.start(rank, serves, False)
    assert processes.result(2, killed=True) is None
    if not early:  # it comes when the members have called for it
        dist.PrefixStore("ep/second", processes.server).wait(["covey/ep0"])
    processes.start(2, serves, True)
    assert processes.results(3) == [[False, False]] * 3


def warms_up(store, rank):
    """As vLLM scales up: a new worker masks all others and runs alone before it says that it is ready."""
    later = dist.PrefixStore("second", store)
    manager = Manager(rank, 3, later) if rank == 2 else Manager(rank, 2, store)
    if rank == 2:
        for other in (0, 1):
            manager.buffer.update_mask_buffer(other, mask=True)
        for number in (20, 21):
            manager.step(number)
        manager.buffer.barrier()
        assert manager.mask.tolist()[:3] == [1, 1, 0]
        store.set("ready", "1")
        for other in (0, 1):
            manager.buffer.update_mask_buffer(other, mask=False)
        manager.last = None
    else:
        assert not manager.step(0)
        manager.stage(3, later)
        assert not manager.step(1)
        store.wait(["ready"])
        assert not manager.step(2)
        manager.commit(3)
    faults = [manager.step(number) for number in (6, 7)]
    manager.buffer.barrier()
    return faults


def test_a_new_worker_warms_up_alone(processes):
    assert processes.run(3, warms_up) == [[False, False]] * 3


def goes_alone(store, rank):
    """A member that has masked all others takes no part in their order. It may be a replacement that ep-run started."""
    manager = Manager(rank, 2, store)
    assert not manager.step(0)
    if rank == 0:
        os.environ["COVEY_CREATE"] = "never"
        manager.buffer.update_mask_buffer(1, mask=True)
        for number in range(10, 14):
            manager.step(number)
        manager.buffer.update_mask_buffer(1, mask=False)
        manager.last = None
    faults = [manager.step(number) for number in (1, 2)]
    manager.buffer.barrier()
    return faults


def test_a_member_goes_alone(processes):
    assert processes.run(2, goes_alone) == [[False, False]] * 2

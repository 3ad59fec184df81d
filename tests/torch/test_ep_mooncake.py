# SPDX-License-Identifier: Apache-2.0
"""covey.ep.mooncake over covey.compat.mooncake's process group: SGLang's recovery of a rank, call by call."""

import time

import pytest
import torch
import torch.distributed as dist
from children import die
from conftest import mooncake_group
from ep_steps import HIDDEN, PER_RANK, TOKENS, TOP_K, check_out, check_rows, inputs, results

import covey.ep.mooncake as ep
from covey.compat import mooncake
from covey.errors import FencedError

RANKS = 3


class Dispatcher:
    """What SGLang's dispatcher keeps: the first call has no deadline."""

    def __init__(self, group, active):
        self.group, self.active, self.buffer = group, active, None
        self.first_execution, self.timeout_us = True, 10_000_000

    def get_buffer(self):
        if self.buffer is None:
            hint = ep.Buffer.get_ep_buffer_size_hint(TOKENS, HIDDEN, self.group.size(), PER_RANK * self.group.size())
            self.buffer = ep.Buffer(self.group, hint)
        return self.buffer

    def step(self, number, hook, dies=False):
        """Returns nothing: it checks against what `active` says."""
        buffer, rank, size = self.get_buffer(), self.group.rank(), self.group.size()
        experts = PER_RANK * size
        x, ids, weights = inputs(rank, number, experts)
        timeout = -1 if self.first_execution else self.timeout_us
        recv_x, count, handle, event, wait = buffer.dispatch(
            x, ids, self.active, TOKENS, experts, timeout, use_fp8=True, async_finish=not hook, return_recv_hook=hook)
        wait() if hook else event.current_stream_wait()
        if dies:
            die()
        sources = [r for r in range(size) if self.active[r]]
        check_rows(rank * PER_RANK, PER_RANK, recv_x, count, handle, sources, number, experts)
        y = results(rank * PER_RANK, recv_x, count)
        out, event, wait = buffer.combine(y, ids, weights, self.active, timeout, handle, async_finish=not hook,
                                          return_recv_hook=hook)
        wait() if hook else event.current_stream_wait()
        check_out(out, rank, number, experts, PER_RANK, [r for r in range(size) if self.active[r]], False)
        self.first_execution = False


def lags(group, ranks):
    """What a member knows for a moment when @ranks have come in: the view in which they are pending still."""
    view = group.covey.view()
    view.members, view.pending = view.members - frozenset(ranks), frozenset(ranks)
    group.covey.view = lambda: view


def hears_late(ranks):
    """For three looks this member does not know yet that @ranks have connected."""
    here, looks = mooncake._here, [3]

    def late(group):
        known = here(group)
        looks[0] -= known.issuperset(ranks)
        return known.difference(ranks) if looks[0] >= 0 else known

    mooncake._here = late


def recovered(rank, path, url, hook, early, rejoins):
    active = torch.ones(RANKS, dtype=torch.int32)
    group = mooncake_group(rank, path, url, f"mooncake-ep-{hook}-{early}", RANKS, torch.ones(RANKS, dtype=torch.int32),
                           recovered_rank=rejoins)
    dispatcher = Dispatcher(group, active)
    locations = torch.full((4,), rank, dtype=torch.int64)
    if rejoins:  # join_process_groups()
        if early:
            dispatcher.get_buffer()
        mooncake.join_group(group)
        if dispatcher.buffer is not None:
            dispatcher.buffer.update_ep_member()
    else:
        for number in range(6):
            dispatcher.step(number, hook, dies=rank == 1 and number == 3)
        assert active.tolist() == [1, 0, 1]
        lost = [r for r in range(RANKS) if not active[r]]
        if rank == 2:
            hears_late(lost)
        while True:  # maybe_recover_ep_ranks(), between forward passes
            dispatcher.step(6, hook)
            if all(mooncake.get_peer_state(group, lost)):
                break
        mooncake.recover_ranks(group, lost)
        lags(group, lost)
        dispatcher.buffer.update_ep_member()
        active.fill_(1)
    assert mooncake.get_peer_state(group, range(RANKS)) == [True] * RANKS  # a newcomer may have no buffer yet
    flags = [None] * RANKS
    dist.all_gather_object(flags, rejoins)
    dist.broadcast(locations, flags.index(False))
    assert locations.tolist() == [0] * 4
    for number in range(10, 14):
        dispatcher.step(number, hook)
        group.covey.__dict__.pop("view", None)
        assert active.tolist() == [1, 1, 1]
    dispatcher.buffer.destroy()
    dist.destroy_process_group()


@pytest.mark.parametrize("hook, early", [(True, False), (False, True)])
def test_sglang_recovers_a_rank(children, store, tmp_path, hook, early):
    given = str(tmp_path / "store"), store, hook, early
    for rank in range(RANKS):
        children.spawn(rank, recovered, *given, False)
    assert children.result(1, killed=True) is None
    children.spawn(1, recovered, *given, True)
    children.results(RANKS)


def late(group):
    """Rank 1 stops to call. Rank 0, for which all else is there, passes its deadline, and both others go on without it."""
    buffer, active = ep.Buffer(group, 0), torch.ones(4, dtype=torch.int32)  # longer than the group
    x, ids, weights = torch.ones(2, HIDDEN, dtype=torch.bfloat16), torch.tensor([[0, 2, 4]] * 2), torch.ones(2, TOP_K)
    with pytest.raises(ValueError, match="active_ranks is .*each of the 3 ranks"):
        buffer.dispatch(x, ids, active[:2], TOKENS, 6, -1)
    for number in range(4):
        if group.rank() == 1 and number == 2:
            dist.barrier()
            with pytest.raises(FencedError):
                for _ in range(100):
                    buffer.dispatch(x, ids, active, TOKENS, 6, 500_000, use_fp8=False)
            return None
        patience = -1 if number < 2 else 300_000_000
        if (group.rank(), number) == (0, 2):
            dist.recv(torch.empty(1), src=2)
        recv_x, _, handle, _, wait = buffer.dispatch(
            x, ids, active, TOKENS, 6, 500_000 if (group.rank(), number) == (0, 2) else patience, use_fp8=False,
            return_recv_hook=True)
        if (group.rank(), number) == (2, 2):
            dist.send(torch.ones(1), 0)
        wait()
        out, _, _ = buffer.combine(recv_x, ids, weights, active, patience, handle)
        assert (out == active[:3].sum()).all()
    while 1 in buffer.calls.live.view().members:  # who ends before it is removed leaves it alone
        time.sleep(0.01)
    dist.barrier()
    return active.tolist()


def test_a_late_rank_is_removed(ranks):
    assert ranks.run(3, late, device="none", on_loss="continue") == [[1, 0, 1, 1], None, [1, 0, 1, 1]]


def test_create_elastic():
    buffer = ep.Buffer.create_elastic(rank=1, metadata_timeout_ms=1000)
    assert buffer.patience_s == 1 and buffer.rank == 1
    buffer.update_memory_buffers(4, 2, 0)
    with pytest.raises(ValueError, match="beyond the capacity"):
        buffer.connect_ranks([4])

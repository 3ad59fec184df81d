# SPDX-License-Identifier: Apache-2.0
"""A running group grows past its first size, to what it has room for: SGLang's calls, one by one."""

import pytest
import torch
import torch.distributed as dist
from conftest import mooncake_group
from ep_steps import HIDDEN, PER_RANK, TOKENS, masked, step
from test_ep_mooncake import Dispatcher

from covey.compat import mooncake

FIRST, ALL = 2, 4


def world(rank, path, url, name, joins):
    """The process group with room for ALL ranks; those that join it know how many they will be."""
    return mooncake_group(rank, path, url, name, ALL if joins else FIRST, torch.ones(ALL, dtype=torch.int32),
                          is_extension=joins, max_world_size=ALL)


def admitted(group, serve):
    """try_admit_scale_ranks() in a loop: the members work until the new ranks are there."""
    new = list(range(FIRST, ALL))
    serve()
    while not all(mooncake.get_peer_state(group, new)):
        serve()
    mooncake.recover_ranks(group, new)


def locations_are_told(rank, joins):
    """The first rank that was there gives the locations of the experts to all."""
    flags, locations = [None] * ALL, torch.full((4,), rank, dtype=torch.int64)
    dist.all_gather_object(flags, joins)
    dist.broadcast(locations, flags.index(False))
    assert flags == [False] * FIRST + [True] * (ALL - FIRST) and locations.tolist() == [0] * 4


def over_mooncake(rank, path, url, joins, early):
    group = world(rank, path, url, f"grows-mooncake-{early}", joins)
    active = torch.ones(ALL, dtype=torch.int32)
    active[FIRST:] = 0
    dispatcher = Dispatcher(group, active)
    if joins:
        if early:
            dispatcher.get_buffer()
        mooncake.join_group(group)
        if early:
            dispatcher.buffer.update_ep_member()
    else:
        for number in range(3):
            dispatcher.step(number, hook=True)
        admitted(group, lambda: dispatcher.step(5, hook=True))
        dispatcher.buffer.update_ep_member()
    active.fill_(1)
    assert dist.get_world_size() == ALL
    locations_are_told(rank, joins)
    for number in range(10, 14):
        dispatcher.step(number, hook=number % 2 == 0)
        assert active.tolist() == [1] * ALL
    assert dispatcher.buffer.group_size == ALL
    dispatcher.buffer.destroy()
    dist.destroy_process_group()


def over_nixl(rank, path, url, joins, early):
    """SGLang's dispatcher over NIXL EP: members connect the new ranks in their next dispatch, when all have met in the
    process group. A new rank makes its buffer in its first dispatch, or before."""
    from covey.ep import Buffer

    group = world(rank, path, url, f"grows-nixl-{early}", joins)

    def made(world):
        buffer = Buffer(rank=rank, tcp_store_group=dist.PrefixStore("nixl", dist.FileStore(path + ".ep", -1)),
                        explicitly_destroy=True)
        buffer.update_memory_buffers(ALL, PER_RANK, Buffer.get_rdma_size_hint(TOKENS, HIDDEN, ALL, ALL * PER_RANK))
        buffer.connect_ranks(range(world))
        return buffer

    if joins:
        mooncake.join_group(group)
        buffer = made(ALL) if early else None
    else:
        buffer = made(FIRST)
        for number in range(3):
            assert step(buffer, number) == ([2, 3], [2, 3])
        admitted(group, lambda: step(buffer, 5))
        assert step(buffer, 6, use_fp8=True) == ([2, 3], [2, 3])  # the buffer has not grown yet
    locations_are_told(rank, joins)
    dist.barrier()
    if not joins:
        buffer.connect_ranks(range(FIRST, ALL))
        assert masked(buffer) == []
    buffer = buffer or made(ALL)
    for number in range(10, 14):
        assert step(buffer, number, use_fp8=number % 2 == 1, size=ALL) == ([], [])
    buffer.destroy()
    dist.destroy_process_group()


@pytest.mark.parametrize("early", [True, False])
@pytest.mark.parametrize("over", [over_mooncake, over_nixl])
def test_sglang_grows(children, store, tmp_path, over, early):
    """@early: new ranks make their buffers early."""
    for rank in range(ALL):
        children.spawn(rank, over, str(tmp_path / "store"), store, rank >= FIRST, early)
    children.results(ALL)

# SPDX-License-Identifier: Apache-2.0
"""SGLang's elastic_ep over covey: a rank is replaced, or the group grows, as its ModelRunner has it.

    ep-run -n 3 --restart=on-failure -- python sglang_elastic.py SGLANG
    ep-run -n 2 --grow=1 -- python sglang_elastic.py SGLANG --grow
    ep-run -n 2 --grow=1 -- python sglang_elastic.py SGLANG --grow --nixl
"""

import os
import signal
import sys
from types import SimpleNamespace as Names

import torch.distributed as dist
from sglang_on_host import elastic_ep, founders, init, joins, make, rank, state, step

eplb = Names(rebalance=lambda: iter(()), reset_generator=lambda: None)
grow = "--grow" in sys.argv
name = "nixl" if "--nixl" in sys.argv else "mooncake"
tp = init(name, room=int(grow))
group = dist.group.WORLD if grow else tp.device_group


def recovers(dispatcher):
    """The last rank is killed. The members work until SGLang has taken its replacement in."""
    number = 50
    if rank == founders - 1:
        os.kill(os.getpid(), signal.SIGKILL)
    while not elastic_ep.maybe_recover_ep_ranks(tp_group=tp, eplb_manager=eplb, model_config=None, moe_ep_rank=rank):
        dist.barrier(tp.cpu_group)  # the scheduler gathers numbers of tokens
        step(dispatcher, number, True, range(founders - 1))
        assert elastic_ep.maybe_rebalance_after_rank_fault(eplb_manager=eplb) == (number == 50)
        number += 1


def grows(dispatcher):
    """The members work until SGLang has admitted the new rank."""
    assert state.request_scale(founders + 1) and state.begin_scale()
    state.mark_joining()
    while not elastic_ep.try_admit_scale_ranks([founders]):
        step(dispatcher, 60, True, range(founders))
    state.mark_configuring_data_plane()
    state.instance().active_ranks[founders] = 1
    state.on_scale(founders, founders + 1)
    state.commit_scale()


def joined():
    """A new process comes in."""
    if grow:
        elastic_ep.join_scale_process_group()
    else:
        elastic_ep.join_process_groups()
        assert elastic_ep.get_healthy_expert_location_src_rank(invoked_in_elastic_ep_rejoin_path=True) == 0
    state.instance().reset()


if joins:
    joined()
    if name == "nixl":  # SGLang counts ranks from those of the launch
        group = dist.new_group([rank], backend="mooncake-cpu", use_local_synchronization=True)
else:
    dispatcher = make(name, True, group)
    for number in range(4):
        step(dispatcher, number, True, range(founders))
    grows(dispatcher) if grow else recovers(dispatcher)
size = founders + grow
dispatcher = make(name, True, group)
for number in range(100, 106):
    step(dispatcher, number, True, range(size))
    assert state.instance().active_ranks.tolist() == [1] * size
print("fine:", name, "grown to" if grow else "recovered,", size, flush=True)
dist.destroy_process_group()

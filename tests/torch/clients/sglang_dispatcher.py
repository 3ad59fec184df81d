# SPDX-License-Identifier: Apache-2.0
"""ep-run -n RANKS -- python sglang_dispatcher.py SGLANG DISPATCHERS [--kill] - SGLang's token dispatchers over covey.

SGLANG is an unpacked wheel, DISPATCHERS are some of mooncake, nixl, deepep, deepep_normal, deepep_v2 and
deepep_v2_prefill, with commas. Each but mooncake runs with rows in bf16 and in fp8. With --kill the last rank is killed
in the last run, which may be mooncake or nixl: these tell SGLang's ElasticEPState.
"""

import os
import signal
import sys
from types import SimpleNamespace as Names

import torch.distributed as dist
from sglang_on_host import elastic_ep, founders, init, make, rank, state, step

STEPS = 6


def run(name, fp8, kill):
    dispatcher, eplb = make(name, fp8), Names(rebalance=lambda: iter(()))
    for number in range(STEPS):
        lost = kill and number >= STEPS // 2
        if lost and rank == founders - 1:
            os.kill(os.getpid(), signal.SIGKILL)
        step(dispatcher, number, fp8, range(founders - lost))
        if lost:
            assert state.instance().active_ranks.tolist() == [1] * (founders - 1) + [0]
            assert elastic_ep.maybe_rebalance_after_rank_fault(eplb_manager=eplb) == (number == STEPS // 2)
    print("fine:", name, "fp8" if fp8 else "bf16", type(dispatcher).__name__, flush=True)


init("mooncake")
runs = [(name, fp8) for name in sys.argv[2].split(",") for fp8 in (False, True) if fp8 or name != "mooncake"]
for name, fp8 in runs:
    run(name, fp8, "--kill" in sys.argv and (name, fp8) == runs[-1])
dist.destroy_process_group()

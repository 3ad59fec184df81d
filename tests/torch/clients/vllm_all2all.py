# SPDX-License-Identifier: Apache-2.0
"""ep-run -n RANKS -- python vllm_all2all.py VLLM BACKENDS [--kill] - vLLM's expert parallelism over covey.

VLLM is an unpacked wheel, BACKENDS are names of vLLM with commas: nixl_ep, deepep_low_latency, deepep_high_throughput,
deepep_v2, and deepep_v2_prefill, which is deepep_v2 without captured graphs. Each runs in bf16 and in fp8. With --kill
the last rank is killed in the last run.
"""

import os
import signal
import sys

import torch.distributed as dist
from vllm_on_host import Layer, rank, world

STEPS = 6


def run(backend, fp8, kill):
    layer = Layer(backend, fp8)
    for step in range(STEPS):
        lost = kill and step >= STEPS // 2
        if lost and rank == world - 1:
            os.kill(os.getpid(), signal.SIGKILL)
        layer.step(step, range(world - lost))
        if layer.tells_faults:
            assert bool(layer.manager.query_fault()) == lost, (step, layer.manager.query_active_mask())
    if layer.tells_faults:
        layer.manager.clean_buffers()  # vLLM's retry: a rank that is gone stays masked
        assert layer.manager.query_active_mask().tolist() == [0] * (world - kill) + [1] * kill
    print("fine:", backend, "fp8" if fp8 else "bf16", type(layer.prepare).__name__, flush=True)


runs = [(backend, fp8) for backend in sys.argv[2].split(",") for fp8 in (False, True)]
for backend, fp8 in runs:
    run(backend, fp8, "--kill" in sys.argv and (backend, fp8) == runs[-1])
dist.destroy_process_group()

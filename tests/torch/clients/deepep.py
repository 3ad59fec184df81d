# SPDX-License-Identifier: Apache-2.0
"""deepep.py DEEPEP TEST [ARGS] - runs one of DeepEP's own tests over covey, with tensors on the host.

DEEPEP is a checkout of deepseek-ai/DeepEP, TEST a file in it, as tests/legacy/test_low_latency.py. Of the checkout the
test and deep_ep/utils are used as they are; deep_ep itself is covey.ep.deep_ep. What is replaced: device "cuda" is the
host, nccl is covey, processes are forked, and what only measures time is not run.
"""

import os
import runpy
import sys
from types import ModuleType

import torch
import torch.distributed as dist
import torch.multiprocessing
from on_host import OnHost

import covey.ep.deep_ep as ours
import covey.torch  # noqa: F401


def bench(function, *args, **kwargs):
    return 1.0, 1.0, 1.0


def bench_kineto(function, kernel_names, num_kernels_per_period=1, **kwargs):
    time = 1.0 if num_kernels_per_period == 1 else [1.0] * num_kernels_per_period
    return tuple(time for _ in kernel_names) if isinstance(kernel_names, tuple) else time


def replace_deep_ep(checkout):
    package, compiled = ModuleType("deep_ep"), ModuleType("deep_ep._C")
    package.__path__ = [os.path.join(checkout, "deep_ep")]
    for name in ours.__all__:
        setattr(package, name, getattr(ours, name))
    compiled.EventHandle = ours.EventHandle
    compiled.destroy_nccl_comm = lambda comm: None
    package._C = compiled
    sys.modules.update({"deep_ep": package, "deep_ep._C": compiled})
    import deep_ep.utils.testing as testing

    testing.bench, testing.bench_kineto = bench, bench_kineto


def replace_torch():
    init, spawn = dist.init_process_group, torch.multiprocessing.start_processes

    def by_covey(backend, init_method, world_size, rank, device_id=None):
        OnHost().__enter__()  # for the life of the process
        init("covey", init_method=init_method, world_size=world_size, rank=rank)

    dist.init_process_group = by_covey
    torch.multiprocessing.spawn = lambda function, args, nprocs: spawn(function, args, nprocs, start_method="fork")
    torch.compile = lambda **how: lambda function: function
    torch.set_default_device = torch.cuda.set_device = torch.cuda.synchronize = lambda *_: None


def main():
    checkout, test = sys.argv[1:3]
    replace_torch()
    replace_deep_ep(checkout)
    sys.argv[:3] = [test]
    path = os.path.join(checkout, test)
    sys.path.insert(0, os.path.dirname(path))
    runpy.run_path(path, run_name="__main__")


main()

# SPDX-License-Identifier: Apache-2.0
"""pytorch's own tests with "covey" in place of gloo: python -m pytest -p as_gloo FILE, with this folder in PYTHONPATH.

BACKEND=gloo: the same with gloo, as the control. Ranks are forked, which spares each an import of torch. Tests that ask
for GPUs run on the CPU with four ranks at most, so those that name a GPU themselves fail with both.
"""

import functools
import os
import re

import torch
import torch.distributed as dist
import torch.distributed.distributed_c10d as c10d
from torch.testing._internal import common_distributed, common_fsdp

import covey.torch

NAME = os.environ.get("BACKEND", "covey")
CPUS = 4


def named(backend):
    """@backend with the other name, and each device of it once: a test's device may be the CPU."""
    if not isinstance(backend, str):
        return backend
    return ",".join(dict.fromkeys(re.sub(r"\bgloo\b", NAME, backend).split(",")))


def swapped(function, first):
    """@function with the other name; @first: it is the first argument, and NAME if there is none."""
    @functools.wraps(function)
    def run(*given, **more):
        if first and given:
            given = (named(given[0]), *given[1:])
        elif first or "backend" in more:
            more["backend"] = named(more.get("backend") or NAME)
        return function(*given, **more)

    return run


def forked(test):
    test._start_processes(torch.multiprocessing.get_context("fork").Process)


def on_cpus(count, **unused):
    """In place of skip_if_lt_x_gpu."""
    if count <= CPUS:
        return lambda test: test
    return common_distributed.unittest.skip(f"{count} ranks")


for name in ("init_process_group", "new_group", "new_subgroups", "new_subgroups_by_enumeration"):
    by_name = swapped(getattr(c10d, name), name == "init_process_group")
    setattr(c10d, name, by_name)
    setattr(dist, name, by_name)
common_distributed.MultiProcessTestCase._spawn_processes = forked
torch.multiprocessing.set_start_method("fork", force=True)  # for MultiProcContinuousTest
common_distributed.skip_if_lt_x_gpu = on_cpus
torch.accelerator.device_count = torch.cpu.device_count = lambda: CPUS
common_fsdp.DEVICE_COUNT = CPUS

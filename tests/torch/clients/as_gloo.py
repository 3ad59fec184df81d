# SPDX-License-Identifier: Apache-2.0
"""pytorch's own tests with "covey" in place of gloo: python -m pytest -p as_gloo FILE, with this folder in PYTHONPATH.

Ranks are forked, which spares each an import of torch.
"""

import functools
import re

import torch
import torch.distributed as dist
import torch.distributed.distributed_c10d as c10d
from torch.testing._internal.common_distributed import MultiProcessTestCase

import covey.torch


def named(backend):
    return re.sub(r"\bgloo\b", "covey", backend) if isinstance(backend, str) else backend


def swapped(function, first):
    """@function with the other name; @first: it is the first argument, and "covey" if there is none."""
    @functools.wraps(function)
    def run(*given, **more):
        if first and given:
            given = (named(given[0]), *given[1:])
        elif first or "backend" in more:
            more["backend"] = named(more.get("backend") or "covey")
        return function(*given, **more)

    return run


def forked(test):
    test._start_processes(torch.multiprocessing.get_context("fork").Process)


for name in ("init_process_group", "new_group", "new_subgroups", "new_subgroups_by_enumeration"):
    by_name = swapped(getattr(c10d, name), name == "init_process_group")
    setattr(c10d, name, by_name)
    setattr(dist, name, by_name)
MultiProcessTestCase._spawn_processes = forked

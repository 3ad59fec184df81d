# SPDX-License-Identifier: Apache-2.0
"""Tests of covey.torch: ranks are processes that form a process group."""

import contextlib
import os
import random
import socket
import sys
import tempfile
from datetime import timedelta
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

import torch.distributed as dist
import torch.multiprocessing  # tensors go through pipes

sys.path.append(str(Path(__file__).parents[1] / "python"))
from children import WATCHDOG_S, Children, children, group_name, loaded_once, store  # noqa: F401

loaded_once("torch.distributed", "torch.multiprocessing")


def _rank(rank, function, world, rendezvous, options, arguments):
    torch.set_num_threads(1)
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(world), LOCAL_WORLD_SIZE=str(world))
    import covey.torch

    if torch.cuda.is_available():
        torch.cuda.set_device(rank % torch.cuda.device_count())
    dist.init_process_group("covey", store=dist.FileStore(rendezvous, -1), rank=rank, world_size=world,
                            pg_options=covey.torch.Options(**options))
    answer = function(dist.group.WORLD, *arguments)
    dist.destroy_process_group()
    return answer


class Ranks(Children):
    """Starts the ranks of one process group, and collects what they return."""

    def __init__(self, store, name, folder):
        super().__init__()
        self.options = {"store": store, "group": name, "settings": {"hang_ms": 5000}}
        self.rendezvous = os.path.join(folder, "store")

    def start(self, rank, world, function, *arguments, **options):
        self.spawn(rank, _rank, function, world, self.rendezvous, {**self.options, **options}, arguments)

    def run(self, world, function, *arguments, killed=(), **options):
        """What @function(group, *arguments) returns on each rank; None for those that are @killed."""
        for rank in range(world):
            self.start(rank, world, function, *arguments, **options)
        return self.results(world, killed)


@pytest.fixture
def ranks(store, group_name):
    with tempfile.TemporaryDirectory() as folder:
        group = Ranks(store, group_name, folder)
        yield group
        group.end()


def free_port():
    """A port that stays free: not one of those that the system gives to connections (from 32768 on)."""
    while True:
        with socket.socket() as s, contextlib.suppress(OSError):
            port = random.randrange(10000, 32000)
            s.bind(("127.0.0.1", port))
            return port


def mooncake_group(rank, path, store, name, world, *options, **named):
    """The process group by Mooncake's names, of the processes that meet at @path."""
    from covey.compat import mooncake

    torch.set_num_threads(1)
    os.environ.update(COVEY_STORE=store, COVEY_GROUP=name, COVEY_HANG_MS="5000")
    mooncake.install()
    dist.init_process_group("mooncake-cpu", store=dist.FileStore(path, -1), rank=rank, world_size=world,
                            pg_options=mooncake.MooncakeBackendOptions(*options, **named))
    return dist.group.WORLD


def _with_store(rank, function, port, arguments, environment):
    torch.set_num_threads(1)
    os.environ.update(environment, COVEY_HANG_MS="5000")
    store = dist.TCPStore("127.0.0.1", port, is_master=False, timeout=timedelta(seconds=WATCHDOG_S))
    return function(dist.PrefixStore("ep", store), rank, *arguments)


class Processes(Children):
    """Ranks that have a TCPStore in common, whose server is the test."""

    def __init__(self, store):
        super().__init__()
        self.server = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        self.port = self.server.port
        self.environment = {"COVEY_STORE": store}

    def start(self, rank, function, *arguments):
        self.spawn(rank, _with_store, function, self.port, arguments, self.environment)

    def run(self, world, function, *arguments, killed=()):
        for rank in range(world):
            self.start(rank, function, *arguments)
        return self.results(world, killed)


@pytest.fixture
def processes(store):
    made = Processes(store)
    yield made
    made.end()

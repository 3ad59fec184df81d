# SPDX-License-Identifier: Apache-2.0
"""Tests of covey.torch: ranks are processes that form a process group, with one store of covey for the session."""

import contextlib
import os
import random
import signal
import socket
import tempfile
import traceback
from datetime import timedelta

import pytest

torch = pytest.importorskip("torch")

import torch.distributed as dist
import torch.multiprocessing

from covey.store import Server

WATCHDOG_S = 300
_context = torch.multiprocessing.get_context("spawn")


def die():
    """This process is killed, as by an operator."""
    os.kill(os.getpid(), signal.SIGKILL)


def _rank(pipe, function, rank, world, rendezvous, options, arguments):
    try:
        torch.set_num_threads(1)
        os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(world), LOCAL_WORLD_SIZE=str(world))
        import covey.torch

        if torch.cuda.is_available():
            torch.cuda.set_device(rank % torch.cuda.device_count())
        dist.init_process_group("covey", store=dist.FileStore(rendezvous, -1), rank=rank, world_size=world,
                                pg_options=covey.torch.Options(**options))
        answer = function(dist.group.WORLD, *arguments)
        dist.destroy_process_group()
        pipe.send(("ok", answer))
    except BaseException as error:  # the parent tells of it
        pipe.send(("failed", f"rank {rank}: {error!r}\n{traceback.format_exc()}"))


class Ranks:
    """Starts the ranks of one process group, and collects what they return."""

    def __init__(self, store, name, folder):
        self.options = {"store": store, "group": name, "settings": {"hang_ms": 5000}}
        self.folder, self.running = folder, {}

    def start(self, rank, world, function, *arguments, **options):
        options = {**self.options, **options}
        parent, child = _context.Pipe()
        process = _context.Process(target=_rank, daemon=True, args=(
            child, function, rank, world, os.path.join(self.folder, "store"), options, arguments))
        process.start()
        child.close()
        self.running[rank] = process, parent

    def result(self, rank, killed=False):
        process, pipe = self.running[rank]
        if not pipe.poll(WATCHDOG_S):
            raise TimeoutError(f"rank {rank} hangs")
        try:
            word, answer = pipe.recv()
        except EOFError:
            process.join()
            assert killed and process.exitcode == -signal.SIGKILL, f"rank {rank} ended with {process.exitcode}"
            return None
        process.join(WATCHDOG_S)
        assert word == "ok", answer
        return answer

    def run(self, world, function, *arguments, killed=(), **options):
        """What @function(group, *arguments) returns on each rank; None for those that are @killed."""
        for rank in range(world):
            self.start(rank, world, function, *arguments, **options)
        return [self.result(rank, rank in killed) for rank in range(world)]

    def end(self):
        for process, _ in self.running.values():
            if process.is_alive():
                process.kill()
            process.join()


@pytest.fixture(scope="session")
def store():
    server = Server()
    yield server.url
    server.close()


@pytest.fixture
def ranks(store, request):
    with tempfile.TemporaryDirectory() as folder:
        group = Ranks(store, "".join(c if c.isalnum() else "-" for c in request.node.name)[:60], folder)
        yield group
        group.end()


def free_port():
    """A port that stays free: not one of those that the system gives to connections (from 32768 on)."""
    while True:
        with socket.socket() as s, contextlib.suppress(OSError):
            port = random.randrange(10000, 32000)
            s.bind(("127.0.0.1", port))
            return port


def _with_store(pipe, function, port, rank, arguments, environment):
    try:
        torch.set_num_threads(1)
        os.environ.update(environment, COVEY_HANG_MS="5000")
        store = dist.TCPStore("127.0.0.1", port, is_master=False, timeout=timedelta(seconds=WATCHDOG_S))
        pipe.send(("ok", function(dist.PrefixStore("ep", store), rank, *arguments)))
    except BaseException as error:  # the parent tells of it
        pipe.send(("failed", f"rank {rank}: {error!r}\n{traceback.format_exc()}"))


class Processes:
    """Ranks that have a TCPStore in common, whose server is the test."""

    def __init__(self, store):
        self.server = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        self.port = self.server.port
        self.environment, self.running = {"COVEY_STORE": store}, {}

    def start(self, rank, function, *arguments):
        pipe, child = _context.Pipe()
        process = _context.Process(target=_with_store, daemon=True,
                                   args=(child, function, self.port, rank, arguments, self.environment))
        process.start()
        child.close()
        self.running[rank] = process, pipe

    def result(self, rank):
        """None: it was killed."""
        process, pipe = self.running[rank]
        if not pipe.poll(WATCHDOG_S):
            raise TimeoutError(f"rank {rank} hangs")
        try:
            word, answer = pipe.recv()
        except EOFError:
            process.join()
            assert process.exitcode == -signal.SIGKILL, f"rank {rank} ended with {process.exitcode}"
            return None
        process.join(WATCHDOG_S)
        assert word == "ok", answer
        return answer

    def run(self, world, function, *arguments):
        for rank in range(world):
            self.start(rank, function, *arguments)
        return [self.result(rank) for rank in range(world)]

    def end(self):
        for process, _ in self.running.values():
            if process.is_alive():
                process.kill()
            process.join()


@pytest.fixture
def processes(store):
    made = Processes(store)
    yield made
    made.end()

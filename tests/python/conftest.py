# SPDX-License-Identifier: Apache-2.0
"""Tests of the Python package: ranks are processes of their own, with one store for the session."""

import multiprocessing
import os
import signal
import traceback

import pytest
from covey.store import Server

WATCHDOG_S = 120
_context = multiprocessing.get_context("spawn")


class Died(Exception):
    """A rank ended without an answer."""


def _member(pipe, function, settings, arguments):
    import covey

    try:
        with covey.join(**settings) as group:
            answer = function(group, *arguments)
        pipe.send(("ok", answer))
    except BaseException as error:  # the parent tells of it
        pipe.send(("failed", f"rank {settings.get('rank')}: {error!r}\n{traceback.format_exc()}"))


class Ranks:
    """Starts ranks of one group, and collects what they return."""

    def __init__(self, store, name):
        self.settings = {"store": store, "group": name, "join_ms": 60000, "hang_ms": 5000}
        self.running = {}

    def start(self, rank, function, *arguments, **settings):
        parent, child = _context.Pipe()
        settings = {**self.settings, "rank": rank, **settings}
        process = _context.Process(target=_member, args=(child, function, settings, arguments), daemon=True)
        process.start()
        child.close()
        self.running[rank] = (process, parent)
        return process

    def result(self, rank):
        process, pipe = self.running[rank]
        if not pipe.poll(WATCHDOG_S):
            raise TimeoutError(f"rank {rank} hangs")
        try:
            word, answer = pipe.recv()
        except EOFError:
            process.join()
            raise Died(f"rank {rank} ended with {process.exitcode}") from None
        process.join(WATCHDOG_S)
        assert word == "ok", answer
        return answer

    def run(self, world, function, *arguments, killed=(), **settings):
        """What @function(group, *arguments) returns on each rank; None for those that are @killed."""
        for rank in range(world):
            self.start(rank, function, *arguments, world=world, **settings)
        answers = []
        for rank in range(world):
            if rank in killed:
                with pytest.raises(Died):
                    self.result(rank)
                answers.append(None)
            else:
                answers.append(self.result(rank))
        return answers

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
    group = Ranks(store, "".join(c if c.isalnum() else "-" for c in request.node.name)[:60])
    yield group
    group.end()


def die():
    """This process is killed, as by an operator."""
    os.kill(os.getpid(), signal.SIGKILL)

# SPDX-License-Identifier: Apache-2.0
"""Ranks as processes of their own, and one store for the session: what the tests of both folders share."""

import multiprocessing
import os
import signal
import subprocess
import sys
import traceback
from pathlib import Path

import pytest
from covey.store import Server

WATCHDOG_S = 300
os.environ.setdefault("COVEY_HANG_MS", "20000")  # a machine under load is no death
ROOT = Path(__file__).parents[2]
_context = multiprocessing.get_context("forkserver")
_parent = None  # of a child: its pipe to the test


def loaded_once(*modules):
    """A server loads them, and ranks are forked from it: importing torch takes longer than most tests."""
    _context.set_forkserver_preload(list(modules))


def die():
    """This process is killed, as by an operator."""
    os.kill(os.getpid(), signal.SIGKILL)


def tell(word):
    """A child's word to the test."""
    _parent.send(("told", word))


def told():
    """The test's word to this child."""
    return _parent.recv()


def _child(pipe, rank, main, arguments, environment):
    global _parent
    _parent = pipe
    os.environ.clear()
    os.environ.update(environment)  # the test's, which may have changed since the server began
    try:
        pipe.send(("ok", main(rank, *arguments)))
    except BaseException as error:  # the parent tells of it
        pipe.send(("failed", f"rank {rank}: {error!r}\n{traceback.format_exc()}"))


class Children:
    """A process for each rank, and what it returns."""

    def __init__(self):
        self.running = {}

    def spawn(self, rank, main, *arguments):
        """The process that runs main(rank, *arguments)."""
        pipe, child = _context.Pipe()
        process = _context.Process(target=_child, args=(child, rank, main, arguments, dict(os.environ)), daemon=True)
        process.start()
        child.close()
        self.running[rank] = process, pipe
        return process

    def result(self, rank, killed=False):
        """What the rank returned; None of a rank that was @killed."""
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

    def hear(self, rank, word):
        pipe = self.running[rank][1]
        assert pipe.poll(WATCHDOG_S) and pipe.recv() == ("told", word)

    def tell(self, rank, word):
        self.running[rank][1].send(word)

    def results(self, world, killed=()):
        return [self.result(rank, rank in killed) for rank in range(world)]

    def end(self):
        for process, _ in self.running.values():
            if process.is_alive():
                process.kill()
            process.join()


@pytest.fixture
def children():
    made = Children()
    yield made
    made.end()


@pytest.fixture(scope="session")
def store():
    server = Server()
    yield server.url
    server.close()


@pytest.fixture
def group_name(request):
    return "".join(c if c.isalnum() else "-" for c in request.node.name)[:60]


def blocks_run(*pages):
    """The code blocks of these pages in Python run."""
    done = subprocess.run([sys.executable, str(ROOT / "tests/docs/run"), str(ROOT), os.environ["COVEY_BUILD"],
                           *(f"docs/{page}.md" for page in pages)], capture_output=True, text=True)
    assert done.returncode == 0 and "0 run" not in done.stdout, done.stdout + done.stderr

# SPDX-License-Identifier: Apache-2.0
"""The store server of a process: wherever its files are, and however its owner ends."""

import os
import select
import signal
import subprocess
import sys

import pytest

import covey
from covey.store import Server

OWNER = """
import os, sys
from covey.store import Server
server = Server({address!r})
{more}
print(server._process.pid, server._directory, flush=True)
sys.stdin.read()
"""


def owner(address, more=""):
    process = subprocess.Popen([sys.executable, "-c", OWNER.format(address=address, more=more)], stdin=subprocess.PIPE,
                               stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    pid, directory = process.stdout.readline().split()
    return process, os.pidfd_open(int(pid)), directory


def ended(pidfd):
    """Waits for the end of what runs the server, which ends last."""
    return select.select([pidfd], [], [], 60)[0] == [pidfd]


@pytest.mark.parametrize("address", [None, "127.0.0.1"])
@pytest.mark.parametrize("how", ["TERM", "KILL", "INT"])
def test_it_ends_with_its_owner(address, how):
    process, pidfd, directory = owner(address)
    process.send_signal(getattr(signal, "SIG" + how))
    process.wait()
    assert ended(pidfd) and not os.path.exists(directory)


def test_children_do_not_hold_it():
    process, pidfd, directory = owner(None, "import signal\nchild = os.fork()\nchild or signal.pause()\n"
                                            "print(child, file=sys.stderr, flush=True)")
    process.kill()
    process.wait()
    assert ended(pidfd) and not os.path.exists(directory)
    os.kill(int(process.stderr.readline()), signal.SIGKILL)


def test_it_ends_by_itself():
    process, pidfd, directory = owner(None)
    process.communicate()
    assert process.returncode == 0 and ended(pidfd) and not os.path.exists(directory)


@pytest.mark.parametrize("name", ["a blank", "a'quote", 'a"quote', "back\\slash", "a\nline", "a?b", "a%20b", "a#b", "ümlaut",
                                  "long" * 50])
@pytest.mark.parametrize("relative", [False, True])
def test_any_folder(tmp_path, monkeypatch, name, relative):
    import tempfile

    folder = tmp_path / name
    folder.mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(tempfile, "tempdir", None)
    monkeypatch.setenv("TMPDIR", name if relative else str(folder))
    server = Server()
    with covey.join(store=server.url, group="folder", rank=0, world=1) as group:
        assert group.barrier().ranks == {0}
    server.close()
    assert not os.path.exists(server._directory)

# SPDX-License-Identifier: Apache-2.0
"""examples/torch/ddp.py and fsdp2.py: ranks are killed, replaced, added and retired, and all end with the same bytes."""

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytest.importorskip("torch")

_EXAMPLES = Path(__file__).parents[2] / "examples/torch"
_TOOLS = Path(os.environ["COVEY_BUILD"]) / "tools"
_WATCHDOG_S = 900


class Job:
    """ep-run with a program, whose lines are read as they come."""

    def __init__(self, *words):
        environment = {k: v for k, v in os.environ.items() if k not in ("COVEY_STORE", "COVEY_GROUP")}
        environment.update(CUDA_VISIBLE_DEVICES="", COVEY_HANG_MS="20000", OMP_NUM_THREADS="1")
        self.text, self.ends = "", time.monotonic() + _WATCHDOG_S
        self.process = subprocess.Popen([_TOOLS / "ep-run", *map(str, words)], env=environment, text=True,
                                        stdout=subprocess.PIPE, stderr=subprocess.STDOUT)

    def until(self, *patterns):
        """Reads on until each of @patterns has had a line, in any order: the groups of the last that came."""
        missing = set(patterns)
        for line in self.process.stdout:
            self.text += line
            for pattern in list(missing):
                found = re.search(pattern, line)
                if found:
                    missing.remove(pattern)
                    if not missing:
                        return found.groups()
            assert time.monotonic() < self.ends, self.text
        raise AssertionError(f"no {missing} in:\n{self.text}")

    def end(self):
        self.text += self.process.stdout.read()
        assert self.process.wait(_WATCHDOG_S) == 0, self.text
        return self.text

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.terminate()
        self.process.wait()


def kill(job, rank):
    pids = re.findall(rf"rank {rank} is process (\d+)", job.text)
    os.kill(int(pids[-1]), signal.SIGKILL)


def alike(text, pattern):
    """What stands for each key of @pattern, a pair of groups, is the same wherever it stands: the number of keys."""
    found = {}
    for key, value in re.findall(pattern, text):
        assert found.setdefault(key, value) == value, text
    return len(found)


def test_ddp(tmp_path):
    """A rank is killed and replaced, one comes, one is retired."""
    name, file = f"ddp-{os.getpid()}", tmp_path / "checkpoint"
    program = [sys.executable, _EXAMPLES / "ddp.py", "--checkpoint", file, "--steps", 100000]
    with Job("-n", 3, "-g", name, "--restart=on-failure", "--", *program) as job:
        job.until(*(rf"rank {rank} is process" for rank in range(3)), r"ranks \[0, 1, 2\]")
        kill(job, 0)
        job.until(r"ranks \[1, 2\]")
        job.until(r"ranks \[0, 1, 2\]")
        with Job("--grow", 1, "-g", name, "--", *program) as more:
            job.until(r"ranks \[0, 1, 2, 3\]")
            subprocess.run([_TOOLS / "ep-admin", "--group", name, "retire", "2"], check=True, capture_output=True)
            job.until(r"rank 2 was retired after", r"ranks \[0, 1, 3\]")
            text = job.text
            more.process.terminate()
            text += more.process.stdout.read()
        assert alike(text, r"step (\d+), parameters (\w+)") >= 4
        assert file.exists()


DIES = """
import os, runpy, signal, sys
import covey.torch
check, steps = covey.torch.check, []
def dies():
    steps.append(1)
    if len(steps) == 25 and os.environ["RANK"] == "1" and os.environ["COVEY_CREATE"] == "first":
        os.kill(os.getpid(), signal.SIGKILL)
    check()
covey.torch.check = dies
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def test_fsdp2(tmp_path):
    """A death between checkpoints, in step 25: the weights are those of a run without one."""
    (tmp_path / "dies.py").write_text(DIES)

    def run(folder, *program):
        words = *program, _EXAMPLES / "fsdp2.py", "--folder", folder, "--steps", 40, "--every", 10
        with Job("-n", 3, "--restart=on-failure", "--", sys.executable, *words) as job:
            return job.end()

    died = run(tmp_path / "died", tmp_path / "dies.py")
    assert "rank 1 was killed by signal 9" in died and re.findall(r"from step (\d+)", died) == ["0", "20"], died
    assert alike(run(tmp_path / "plain") + died, r"(has) parameters (\w+)") == 1

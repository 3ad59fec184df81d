# SPDX-License-Identifier: Apache-2.0
"""Process groups under torchrun, without a Redis at hand, and under ep-run."""

import os
import subprocess
import sys

import pytest
import torch
from conftest import free_port

PROGRAM = """
import torch, torch.distributed as dist
import covey.torch
{begin}
x = torch.ones(4) * (dist.get_rank() + 1)
dist.all_reduce(x)
some = dist.new_group([0, 2])
if dist.get_rank() != 1:
    dist.all_reduce(y := torch.ones(1), group=some)
objects = [None] * dist.get_world_size()
dist.all_gather_object(objects, dist.get_rank())
assert x[0].item() == 6 and (dist.get_rank() == 1 or y.item() == 2) and objects == [0, 1, 2]
dist.destroy_process_group()
print("fine")
"""


def output(command, begin, tmp_path):
    program = tmp_path / "program.py"
    program.write_text(PROGRAM.format(begin=begin))
    environment = {k: v for k, v in os.environ.items() if k not in ("COVEY_STORE", "COVEY_GROUP")}
    done = subprocess.run([*command, str(program)], env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_torchrun(tmp_path):
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "3", "--master-port", str(free_port())]
    begin = 'dist.init_process_group("covey", pg_options=covey.torch.Options(device="none"))'
    assert output(command, begin, tmp_path).count("fine") == 3


def test_ep_run(tmp_path):
    command = [os.path.join(os.environ["COVEY_BUILD"], "tools", "ep-run"), "-n", "3", "--", sys.executable]
    assert output(command, 'covey.torch.init_process_group(device="none")', tmp_path).count("fine") == 3


def test_a_rank_dies_in_backward_and_is_replaced():
    root = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    command = [os.path.join(os.environ["COVEY_BUILD"], "tools", "ep-run"), "-n", "3", "--restart=on-failure", "--",
               sys.executable, os.path.join(root, "examples", "torch", "train.py")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    ends = [line.split("has ")[1] for line in done.stdout.splitlines() if " has parameters " in line]
    assert done.returncode == 0 and len(ends) == 3 and len(set(ends)) == 1, done.stdout + done.stderr
    assert ": 2 ranks" in done.stdout and ": 3 ranks" in done.stdout, done.stdout


def test_a_rank_dies_in_a_decode_step_and_is_replaced():
    root = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    command = [os.path.join(os.environ["COVEY_BUILD"], "tools", "ep-run"), "-n", "3", "--restart=on-failure", "--",
               sys.executable, os.path.join(root, "examples", "torch", "decode.py")]
    environment = {k: v for k, v in os.environ.items() if k not in ("COVEY_STORE", "COVEY_GROUP")}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0 and done.stdout.count("has done 20 steps") == 3, done.stdout + done.stderr
    assert "rank [1] is gone" in done.stdout, done.stdout


@pytest.mark.skipif(not hasattr(torch.distributed, "_reconfigure"), reason="torch 2.14 has entry points")
def test_entry_point(tmp_path):
    program = tmp_path / "plain.py"
    program.write_text("""
import torch, torch.distributed as dist
dist.init_process_group("covey")
dist.all_reduce(x := torch.ones(1))
assert x.item() == 2
dist.destroy_process_group()
""")
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--master-port", str(free_port())]
    done = subprocess.run([*command, str(program)], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr


@pytest.mark.skipif(not hasattr(torch.distributed, "_reconfigure"), reason="torch 2.14 has reconfigure()")
def test_reconfigure(tmp_path):
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "3", "--master-port", str(free_port())]
    program = """
import os
dist.init_process_group("covey", pg_options=covey.torch.Options(device="none"), enable_reconfigure=True)
store, me = dist.distributed_c10d._get_default_store(), int(os.environ["RANK"])
store.set(f"handle{me}", dist._get_reconfigure_handle())
handles = [store.get(f"handle{r}").decode() for r in range(3)]
if me < 2:
    dist._reconfigure(1, handles[:2]).wait()
    dist.all_reduce(z := torch.ones(1))
    assert z.item() == 2 and dist.get_world_size() == 2
try:
    dist._reconfigure(1 if me < 2 else 2, handles[:2])
    raise SystemExit("refused nothing")
except (RuntimeError, ValueError):
    pass
dist._reconfigure(3, handles).wait()
"""
    assert output(command, program, tmp_path).count("fine") == 3

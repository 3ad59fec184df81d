# SPDX-License-Identifier: Apache-2.0
"""Process groups under torchrun, without a Redis at hand, and under ep-run."""

import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
from conftest import free_port

import covey.torch
from covey.ep._meeting import by_store, tell
from covey.torch import _register

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


IS_LATE = """
import time
from covey.torch import _register
real = _register.join
def late(**settings):
    group = real(**settings)
    if group.rank:
        time.sleep(1)
        open(__file__ + f".{group.rank}", "w").close()
    return group
_register.join = late
dist.init_process_group("covey", pg_options=covey.torch.Options(device="none"))
import os
assert all(os.path.exists(f"{__file__}.{rank}") for rank in (1, 2)) or dist.get_rank()
"""


def test_the_process_with_the_store_waits_until_the_others_are_in(tmp_path):
    """It may end as soon as it has its group, and the store with it: nobody else may need it then for the join."""
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "3", "--master-port", str(free_port())]
    assert output(command, IS_LATE, tmp_path).count("fine") == 3


@pytest.mark.parametrize("backend", ["cpu:gloo,cuda:covey", "cpu:covey,cuda:nccl"])
def test_a_backend_for_each_device(backend, tmp_path, monkeypatch):
    """covey serves all devices of such a group; what torch hangs on the others finds its place."""
    monkeypatch.setenv("TORCH_DIST_NAN_CHECK", "1")
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "3", "--master-port", str(free_port())]
    begin = f'dist.init_process_group("{backend}", pg_options=covey.torch.Options(device="none"))'
    assert output(command, begin, tmp_path).count("fine") == 3


ROUNDS = """
import os, sys, torch, torch.distributed as dist
import covey.torch
dist.init_process_group("covey", pg_options=covey.torch.Options(device="none"))
dist.all_reduce(x := torch.ones(1))
if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0" and dist.get_rank() == 1:
    sys.exit(3)
dist.barrier()
assert x.item() == 3
dist.destroy_process_group()
print("fine")
"""


def test_a_second_round_of_torchrun(tmp_path):
    """Its store is that of the first round."""
    program = tmp_path / "rounds.py"
    program.write_text(ROUNDS)
    environment = {k: v for k, v in os.environ.items() if k not in ("COVEY_STORE", "COVEY_GROUP")}
    done = subprocess.run([sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "3", "--max-restarts", "1",
                           "--rdzv-backend", "c10d", "--rdzv-endpoint", f"127.0.0.1:{free_port()}", str(program)],
                          env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0 and done.stdout.count("fine") == 3, done.stdout + done.stderr


def test_founders_ask_in_a_store_that_is_used_again(monkeypatch):
    """Whatever a round left there, at whatever place it ended, each rank hears what rank 0 of its own round says."""
    monkeypatch.delenv("COVEY_GROUP", raising=False)
    monkeypatch.setenv("COVEY_STORE", "redis://unused")
    store, size = dist.HashStore(), 3

    class Founder:
        timeout, group_size, group_id = timedelta(seconds=60), size, "0"

        def __init__(self, rank):
            self.group_rank, self.store = rank, store

    def meets(rank):
        return _register._meet(Founder(rank), covey.torch.Options())

    names = set()
    for _ in range(3):
        store.set("covey-asks-1", "a word of a process that has ended")
        with ThreadPoolExecutor(size) as pool:
            told = list(pool.map(meets, reversed(range(size))))
        assert told[0] == told[1] == told[2]
        names.add(told[0]["group"])
    assert len(names) == 3


def test_the_timeout_of_torch_is_that_of_a_join(monkeypatch):
    monkeypatch.delenv("COVEY_JOIN_MS", raising=False)

    class Joins(Exception):
        pass

    def join(**settings):
        raise Joins(settings["join_ms"])

    monkeypatch.setattr(_register, "join", join)
    for given, settings in ((1500, {}), (600000, {}), (7, {"join_ms": 7})):
        with pytest.raises(Joins, match=f"^{given}$"):
            dist.init_process_group("covey", store=dist.HashStore(), rank=0, world_size=1,
                                    timeout=timedelta(milliseconds=given), pg_options=covey.torch.Options(
                                        store="redis://unused", group="waits", device="none", settings=settings))


def stores(tmp_path):
    yield dist.HashStore()
    yield dist.FileStore(str(tmp_path / "file"), 2)
    for uv in (False, True):
        yield dist.TCPStore("127.0.0.1", 0, None, True, wait_for_workers=False, use_libuv=uv)
    yield dist.PrefixStore("prefix", dist.TCPStore("127.0.0.1", 0, None, True, wait_for_workers=False, use_libuv=False))


def test_buffers_meet_over_each_store(tmp_path, monkeypatch):
    monkeypatch.setenv("COVEY_STORE", "redis://unused")
    for store in stores(tmp_path):
        store.set_timeout(timedelta(seconds=60))
        under = store.underlying_store if isinstance(store, dist.PrefixStore) else store
        other = store
        if isinstance(under, dist.TCPStore):  # a client of its own: a wait holds it
            other = dist.TCPStore("127.0.0.1", under.port, None, False, wait_for_workers=False,
                                  use_libuv=under.libuvBackend, timeout=timedelta(seconds=60))
            other = dist.PrefixStore("prefix", other) if under is not store else other
        with ThreadPoolExecutor(1) as pool:
            waits = pool.submit(by_store, other, 1, {0, 1}, 0)
            time.sleep(0.3)  # it waits by then
            assert by_store(store, 0, {0, 1}, 0) == waits.result()
            waits = pool.submit(by_store, dist.PrefixStore("new", other), 2, {0, 1, 2}, 0)
            tell(members := by_store(store, 0, {0, 1}, 0), dist.PrefixStore("new", store), 3)
            assert waits.result() == members._replace(joins=True)  # members tell in a store of their newcomer


@pytest.mark.parametrize("call", ["covey.torch.init_process_group(device=\"none\")",
                                  "dist.init_process_group(\"covey\", pg_options=covey.torch.Options(device=\"none\"))"])
def test_ep_run(call, tmp_path):
    command = [os.path.join(os.environ["COVEY_BUILD"], "tools", "ep-run"), "-n", "3", "--", sys.executable]
    assert output(command, call, tmp_path).count("fine") == 3


REPLACED = """
import os, signal
import torch, torch.distributed as dist
import covey.torch
dist.init_process_group("covey", pg_options=covey.torch.Options(device="none", on_loss="continue"))
step, ranks = torch.zeros(1), ()
while step.item() < 20 or len(ranks) < 3:
    ranks = covey.torch.admit([step]).ranks
    if step.item() == 3 and dist.get_rank() == {dies} and os.environ["COVEY_CREATE"] == "first":
        os.kill(os.getpid(), signal.SIGKILL)
    dist.all_reduce(torch.ones(1))
    step += 1
print("done")
dist.destroy_process_group()
"""


@pytest.mark.parametrize("dies", [0, 1])
def test_a_replacement_meets_as_the_others_did(dies, tmp_path):
    """torch's own call, whose store was rank 0's."""
    program = tmp_path / "program.py"
    program.write_text(REPLACED.format(dies=dies))
    environment = {k: v for k, v in os.environ.items() if k not in ("COVEY_STORE", "COVEY_GROUP")}
    done = subprocess.run([os.path.join(os.environ["COVEY_BUILD"], "tools", "ep-run"), "-n", "3", "--restart=on-failure", "--",
                           sys.executable, program], env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0 and done.stdout.count("done") == 3, done.stdout + done.stderr
    assert f"rank {dies} was killed by signal 9" in done.stderr, done.stderr


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

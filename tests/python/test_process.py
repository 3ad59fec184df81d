# SPDX-License-Identifier: Apache-2.0
"""What the package takes from a process: the GIL, signals, descriptors, memory; and wrong arguments."""

import os
import re
import signal
import subprocess
import sys
import threading
import time
from ctypes import sizeof
from pathlib import Path

import numpy as np
import pytest
from children import WATCHDOG_S, tell, told

import covey
from covey import _abi


def counts_meanwhile(group):
    """A thread counts while this one waits for rank 1, which comes when it has."""
    waits = threading.Event()

    def count():
        waits.wait()
        for _ in range(100):
            time.sleep(0.001)
        tell("counted")

    if group.rank == 1:
        assert told() == "come"
        group.barrier()
        return
    thread = threading.Thread(target=count)
    thread.start()
    waits.set()
    group.barrier()
    thread.join()


def test_waits_let_other_threads_run(ranks):
    for rank in range(2):
        ranks.start(rank, counts_meanwhile, world=2)
    ranks.hear(0, "counted")
    ranks.tell(1, "come")
    ranks.results(2)


def interrupted(group, how):
    if group.rank == 1:
        return told()
    with pytest.raises(KeyboardInterrupt):
        threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()
        while True:  # the first few safe points without a joiner wait for nobody
            getattr(group, how)()
    os._exit(5)


@pytest.mark.parametrize("how", ["barrier", "admit"])
def test_ctrl_c_ends_a_wait(ranks, how):
    first = ranks.start(0, interrupted, how, world=2)
    ranks.start(1, interrupted, how, world=2)
    first.join(WATCHDOG_S)
    assert first.exitcode == 5
    ranks.tell(1, "it has ended")
    assert ranks.result(1) == "it has ended"


def test_ctrl_c_ends_a_join(store):
    code = "import covey; print('joins', flush=True); covey.join(store=%r, group='never-whole', rank=0, world=2)" % store
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout.readline() == b"joins\n"
    time.sleep(0.5)  # it waits by then
    process.send_signal(signal.SIGINT)
    assert b"KeyboardInterrupt" in process.communicate(timeout=60)[1]


def test_a_join_that_fails_names_the_missing(store):
    for join_ms in (500, 5000, 50000):  # on a busy machine the store may not have answered in the first
        with pytest.raises(covey.Error) as caught:
            covey.join(store=store, group="lacks-one", rank=0, world=2, join_ms=join_ms)
        if isinstance(caught.value, TimeoutError):
            break
    assert isinstance(caught.value, TimeoutError) and "rank 1 has not come" in caught.value.cause


@pytest.mark.parametrize("settings,kind,words", [
    ({"wrold": 2}, TypeError, "no setting 'wrold'"),
    ({"create": "perhaps"}, ValueError, "default, never, first"),
    ({"store": "http://x"}, ValueError, "redis://"),
    ({"group": "a b"}, ValueError, "letters, digits"),
    ({"rank": 1 << 32}, ValueError, "4294967296: it does not fit"),
])
def test_wrong_settings(store, settings, kind, words):
    with pytest.raises(kind, match=re.escape(words)):
        covey.join(**{"store": store, "rank": 0, "world": 1, **settings})


def wrong_arguments(group):
    x = np.ones((4, 4), np.float32)
    for call, kind, words in [
        (lambda: group.allreduce([1, 2]), TypeError, "list is no array"),
        (lambda: group.allreduce(x.T), ValueError, "contiguous"),
        (lambda: group.allreduce(x, np.ones(3, np.float32)), ValueError, "16 elements and recv 3"),
        (lambda: group.allreduce(x, np.ones((4, 4))), TypeError, "both must be alike"),
        (lambda: group.allreduce(x, op="mean"), ValueError, "sum, prod, max, min, avg"),
        (lambda: group.allreduce(x.astype(complex)), TypeError, "not known to covey"),
        (lambda: group.allgather(x, np.ones(3, np.float32)), ValueError, "blocks of 16"),
        (lambda: group.broadcast(x, 5), ValueError, "root 5"),
        (lambda: group.send(x, 77), ValueError, "peer"),
        (lambda: group.alltoallv(x, [1], x, [20]), ValueError, "end at element 20"),
        (lambda: group.allreduce(x, stream=3), ValueError, "host memory"),
        (lambda: covey.Ep(group, max_tokens=0, hidden=8, top_k=1, experts=1), ValueError, "max_tokens"),
    ]:
        with pytest.raises(kind, match=re.escape(words)):
            call()
    frozen = x.copy()
    frozen.flags.writeable = False
    with pytest.raises(ValueError, match="read-only"):
        group.allreduce(frozen)
    assert group.allreduce(x).ranks == {0}


def test_wrong_arguments(ranks):
    ranks.run(1, wrong_arguments)


def test_a_thousand_groups_leave_nothing(store):
    """Descriptors, threads and memory are flat."""
    def cycle(i):
        with covey.join(store=store, group=f"cycle-{i % 10}", rank=0, world=1) as group:
            group.allreduce(np.ones(10))

    def held():
        status = Path("/proc/self/status").read_text()
        return (len(os.listdir("/proc/self/fd")), int(re.search(r"Threads:\s+(\d+)", status)[1]),
                int(re.search(r"VmRSS:\s+(\d+)", status)[1]))

    for i in range(200):
        cycle(i)
    before = held()
    for i in range(800):
        cycle(i)
    after = held()
    assert after[0] <= before[0] and after[1] <= before[1]
    assert after[2] < before[2] + 8192, "kilobytes"


def test_structs_are_those_of_the_header():
    """The list that the C side keeps of its interface."""
    text = (Path(__file__).parents[1] / "abi" / "x86_64").read_text()
    for name, size in re.findall(r"^struct (\w+): (\d+) bytes", text, re.M):
        assert sizeof(getattr(_abi, name)) == int(size), name
    for name, field, size, at in re.findall(r"^field (\w+)\.(\w+): (\d+) bytes at (\d+)", text, re.M):
        place = getattr(getattr(_abi, name), field)
        assert (place.offset, place.size) == (int(at), int(size)), f"{name}.{field}"
    assert set(re.findall(r"^symbol (covey_\w+)", text, re.M)) == set(_abi.FUNCTIONS)


def test_version():
    assert covey.__version__.count(".") == 2
    code = f"{_abi.COVEY_VERSION_MAJOR}.{_abi.COVEY_VERSION_MINOR}.{_abi.COVEY_VERSION_PATCH}"
    assert covey.__version__ == code


def closes_meanwhile(group):
    """Threads that wait in collectives hear that the group has ended."""
    heard = []

    def waits():
        try:
            group.barrier()
        except covey.HandleError as error:
            heard.append(error.name)

    threads = [threading.Thread(target=waits)]
    if group.rank == 0:
        threads[0].start()
        while not group._inside:
            time.sleep(0.001)
        time.sleep(0.3)  # it waits by then
        group.close()
        threads[0].join()
        return heard
    told()
    group.close()


def test_close_ends_the_waits_of_other_threads(ranks):
    for rank in range(2):
        ranks.start(rank, closes_meanwhile, world=2)
    assert ranks.result(0) == ["ABORTED"]
    ranks.tell(1, "it has ended")
    ranks.result(1)


def one_work_many_threads(group):
    """Threads wait for one work, others test it: all get its outcome."""
    for _ in range(50):
        x = np.ones(1000)
        work = group.allreduce_start(x)
        outcomes = []
        threads = [threading.Thread(target=lambda: outcomes.append(work.wait().seq)) for _ in range(4)]
        for thread in threads:
            thread.start()
        while not work.test():
            pass
        for thread in threads:
            thread.join()
        assert len(set(outcomes)) == 1 and len(outcomes) == 4
    for _ in range(300):  # nobody waits for these: they are not kept for ever
        group.allreduce_start(np.ones(1))
    group.barrier()
    for _ in range(64):
        group.allreduce_start(np.ones(1)).wait()
    assert len(group._works) < 64
    return True


def test_one_work_and_many_threads(ranks):
    ranks.run(2, one_work_many_threads)


def wrong_experts(group):
    T, H, K, E = 4, 128, 2, 4
    x, ids, weights = np.zeros((T, H), np.uint16), np.zeros((T, K), np.int32), np.ones((T, K), np.float32)
    with covey.Ep(group, max_tokens=T, hidden=H, top_k=K, experts=E) as ep:
        for call, kind, words in [
            (lambda: ep.dispatch(x.astype(np.float16), ids), TypeError, "x has elements of float16, it needs bfloat16"),
            (lambda: ep.dispatch(x, ids.astype(np.uint64)), TypeError, "experts has elements of uint64"),
            (lambda: ep.dispatch(x[:1], ids), ValueError, "x has 128 elements, it needs 512"),
            (lambda: ep.dispatch(x, ids, active_ranks=np.zeros(0, np.int32)), ValueError, "active_ranks has 0"),
        ]:
            with pytest.raises(kind, match=re.escape(words)):
                call()
        routed = ep.dispatch(x, ids, weights)
        with pytest.raises(ValueError, match="out has 128 elements, it needs 512"):
            ep.combine(routed.x, routed, ids, weights, out=np.zeros((1, H), np.uint16))
        with pytest.raises(ValueError, match="weights has 1 "):
            ep.combine(routed.x, routed, ids, np.ones(1, np.float32))
        ep.combine(routed.x, routed, ids, weights)
    with pytest.raises(ValueError, match="closed"):
        ep.rows
    with pytest.raises(TypeError, match="no memory"):
        group.allreduce(np.ones(3).mean())


def test_wrong_buffers_of_experts(ranks):
    ranks.run(1, wrong_experts)

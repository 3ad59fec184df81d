# SPDX-License-Identifier: Apache-2.0
"""Ranks are killed, replaced, added, retired; the survivors agree, and errors say what they should."""

import os
import time

import numpy as np
import pytest
from children import die, told

import covey
from covey.errors import AbortedError, ForkedError, MismatchError, PeerError


def loses_one(group, on_loss):
    """Rank 1 dies within the 50th operation: (step, epoch, ranks) of the first with fewer, and the last sum."""
    group.set_on_loss(on_loss)
    seen = None
    for step in range(200):
        if step == 50 and group.rank == 1:
            die()
        x = np.full(5000, 1 << group.rank, np.int32)
        outcome = group.allreduce(x)
        assert (x == sum(1 << r for r in outcome.ranks)).all()
        if seen is None and outcome.ranks != {0, 1, 2}:
            seen = (step, outcome.epoch, sorted(outcome.ranks))
    return seen, int(x[0])


def test_survivors_agree(ranks):
    first, _, third = ranks.run(3, loses_one, "continue", killed=[1])
    assert first == third
    assert first[0][2] == [0, 2] and first[1] == 5


def fails_on_loss(group):
    try:
        loses_one(group, "fail")
    except PeerError as error:
        return error.name, error.rank, error.epoch > 0, bool(error.cause)
    return None


def test_loss_can_be_an_exception(ranks):
    first, _, third = ranks.run(3, fails_on_loss, killed=[1])
    assert first == third == ("PEER", 1, True, True)


def serves(group, whole):
    """Steps until @whole ranks have made 20 steps together; the state is the step."""
    step, together, sizes = 0, 0, set()
    while together < 20:
        outcome = group.admit(step.to_bytes(8, "little"))
        step = int.from_bytes(outcome.state, "little") + 1
        x = np.full(100, step, np.int64)
        result = group.allreduce(x)
        assert (x == step * len(result.ranks)).all(), "all are at the same step"
        together = together + 1 if len(result.ranks) == whole else 0
        sizes.add(len(result.ranks))
        if step == 10 and group.rank == 2 and whole == 3:
            die()
    return step, sorted(sizes), [e.kind.name for e in group.events()]


def test_a_replacement_comes_in_with_the_state(ranks):
    for rank in range(3):
        ranks.start(rank, serves, 3, world=3)
    assert ranks.result(2, killed=True) is None
    ranks.start(2, serves, 3, create="never")
    answers = ranks.results(3)
    assert len({a[0] for a in answers}) == 1
    assert answers[0][1] == [2, 3] and answers[2][1] == [3]
    assert "VIEW" in answers[0][2]


def test_the_group_grows(ranks):
    for rank in range(2):
        ranks.start(rank, serves, 4, world=2)
    for rank in (2, 3):
        ranks.start(rank, serves, 4, create="never")
    answers = ranks.results(4)
    assert len({a[0] for a in answers}) == 1


def retires(group):
    if group.rank == 0:
        request = group.retire(1)
    while True:
        try:
            outcome = group.allreduce(np.ones(1))
        except covey.HandleError as error:
            return error.name
        if outcome.ranks == {0} and request.test():
            return "alone"
        time.sleep(0.001)


def test_a_rank_is_retired(ranks):
    ranks.start(0, retires, world=2)
    ranks.start(1, retires, world=2)
    assert ranks.result(0) == "alone"
    with pytest.raises(AssertionError, match="Fenced|Closed"):  # leaving a group that has left this rank is refused
        assert ranks.result(1) == "FENCED"
        raise AssertionError("Fenced")


def mismatches(group):
    x = np.ones(10)
    with pytest.raises(MismatchError) as caught:
        group.allreduce(x, op="max" if group.rank else "sum")
    assert "allreduce" in caught.value.cause and caught.value.seq
    return group.allreduce(np.ones(1)).seq


def test_different_calls_are_an_exception_on_all(ranks):
    assert len(set(ranks.run(3, mismatches))) == 1


def aborts(group):
    import threading

    if group.rank == 1:
        return told()  # never: it is there as long as rank 0 waits
    threading.Timer(0.2, group.abort).start()
    with pytest.raises(AbortedError):
        group.barrier()
    return True


def test_abort_ends_a_wait(ranks):
    ranks.start(0, aborts, world=2)
    ranks.start(1, aborts, world=2)
    with pytest.raises(AssertionError, match="^rank 0: AbortedError"):  # leave() of an aborted handle
        ranks.result(0)


def forks(group):
    pid = os.fork()
    if pid == 0:
        try:
            group.allreduce(np.ones(1))
        except ForkedError:
            os._exit(7)
        os._exit(1)
    status = os.waitpid(pid, 0)[1]
    group.barrier()
    return os.waitstatus_to_exitcode(status)


def test_a_forked_child_is_told(ranks):
    assert ranks.run(2, forks) == [7, 7]

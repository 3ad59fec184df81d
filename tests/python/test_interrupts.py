# SPDX-License-Identifier: Apache-2.0
"""Ctrl-C, and signal handlers that end the group, at every place of a call: nothing is lost, and close() ends."""

import gc
import itertools

import numpy as np
import pytest
from interrupts import Owned, everywhere, needs_places

import covey

pytestmark = [needs_places, pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")]  # finalizers
H = 128


def operations(group):
    """Calls that a group of one rank ends at once."""
    tags = itertools.count()
    x, y, blocks = np.ones(5, np.float32), np.zeros(5, np.float32), np.zeros((1, 5), np.float32)

    def grouped():
        with covey.grouped():
            group.allreduce(x, y)

    def with_grouped_works():
        with covey.grouped():
            group.allreduce_start(x, y)

    def message():
        tag = next(tags)  # a receive that nobody waits for does not take the next message
        work = group.recv_start(y, 0, tag)
        group.send(x, 0, tag)
        work.wait()

    return [lambda: group.allreduce(x, y), lambda: group.allreduce_start(x, y).wait(), lambda: group.broadcast(x, 0),
            lambda: group.reduce(x, y), lambda: group.allgather(x, blocks), lambda: group.reduce_scatter(blocks, y),
            lambda: group.alltoall(blocks), lambda: group.gather(x, blocks), lambda: group.scatter(blocks, y),
            lambda: group.alltoallv(x, [5], y, [5]), lambda: group.allgatherv(x, y, [5]), group.barrier, grouped,
            with_grouped_works, message, lambda: group.recover([0]), group.view, group.explain, group.fileno,
            lambda: list(group.events()), lambda: group.set_on_loss("fail")]


def interrupted(group):
    owned = Owned(group)
    x = np.ones(3, np.float32)

    def right():
        y = np.zeros(3, np.float32)
        group.allreduce(x, y)
        assert y.tolist() == [1, 1, 1] and not group._inside

    places = sum(everywhere(call, right) for call in operations(group))
    group.close()
    assert owned.count("work") == 0
    return places


def test_ctrl_c_in_operations(ranks):
    assert ranks.run(1, interrupted)[0] > 500


def step(ep, x, ids, weights):
    routed = ep.dispatch(x, ids, weights)
    return ep.combine(routed.x, routed, ids, weights)[0]


def tokens():
    return covey.to_bf16(np.ones((4, H))), np.zeros((4, 1), np.int32), np.ones((4, 1), np.float32)


def interrupted_experts(group):
    owned = Owned(group)
    arguments = tokens()
    shape = {"max_tokens": 4, "hidden": H, "top_k": 1, "experts": 1}

    def makes():
        covey.Ep(group, **shape).close()

    everywhere(makes)
    ep = covey.Ep(group, **shape)

    def continues():
        assert np.array_equal(step(ep, *arguments), arguments[0]) and not group._inside

    everywhere(lambda: step(ep, *arguments), continues)
    group.close()
    assert owned.count("ep") == owned.count("work") == 0


def test_ctrl_c_in_dispatch_and_combine(ranks):
    ranks.run(1, interrupted_experts)


@pytest.fixture
def owned(monkeypatch):
    from covey._library import lib

    for name in list(vars(lib)):
        if name.startswith("covey_"):
            monkeypatch.setattr(lib, name, getattr(lib, name))  # as it was, afterwards
    return Owned()


def join_alone(store, name):
    return covey.join(store=store, group=name, rank=0, world=1)


def test_ctrl_c_in_a_join(store, owned):
    def nothing_is_lost():
        assert owned.count("group") == 0

    everywhere(lambda: join_alone(store, "interrupted-join"), nothing_is_lost)


def under_way(group):
    """A receive that nobody sends for, and a handle for dispatch and combine that has sent."""
    group.recv_start(np.zeros(3, np.float32), 0, 7)
    return covey.Ep(group, max_tokens=4, hidden=H, top_k=1, experts=1)


def test_ctrl_c_in_close(store, owned):
    def ends():
        group = join_alone(store, "interrupted-close")
        kept.append((group, under_way(group)))
        group.close()

    def closes_again():
        if kept:
            kept.pop()[0].close()
        gc.collect()  # a group and its works know each other
        assert owned.count("group") == 0 and not owned.live

    kept = []
    everywhere(ends, closes_again)


@pytest.mark.parametrize("how", ["allreduce", "admit", "dispatch", "abort", "close"])
def test_a_handler_closes_the_group(store, owned, how):
    """What it interrupts ends: with an error, or as it would have."""
    def call():
        group = join_alone(store, f"closed-in-{how}")
        groups.append(group)
        ep = under_way(group)
        x = np.ones(3, np.float32)
        calls = {"allreduce": lambda: group.allreduce(x), "admit": group.admit, "abort": group.abort,
                 "close": group.close, "dispatch": lambda: step(ep, *tokens())}
        places.append(True)
        calls[how]()

    def handler():
        for group in groups:
            group.close()

    def ended():
        for group in groups:
            group.close()
        groups.clear()
        gc.collect()
        assert owned.count("group") == 0 and not owned.live

    groups, places = [], []
    everywhere(call, ended, handler, (covey.HandleError, ValueError, covey.CallError))

# SPDX-License-Identifier: Apache-2.0
"""Tests of the Python package: ranks are members of one group."""

import pytest
from children import Children, group_name, store  # noqa: F401


def _member(rank, function, settings, arguments):
    import covey

    with covey.join(rank=rank, **settings) as group:
        return function(group, *arguments)


class Ranks(Children):
    """Starts ranks of one group, and collects what they return."""

    def __init__(self, store, name):
        super().__init__()
        self.settings = {"store": store, "group": name, "join_ms": 60000, "hang_ms": 5000}

    def start(self, rank, function, *arguments, **settings):
        return self.spawn(rank, _member, function, {**self.settings, **settings}, arguments)

    def run(self, world, function, *arguments, killed=(), **settings):
        """What @function(group, *arguments) returns on each rank; None for those that are @killed."""
        for rank in range(world):
            self.start(rank, function, *arguments, world=world, **settings)
        return self.results(world, killed)


@pytest.fixture
def ranks(store, group_name):
    group = Ranks(store, group_name)
    yield group
    group.end()

# SPDX-License-Identifier: Apache-2.0
"""elasticInfo, the word list by which other systems tell which ranks are left."""

import numpy as np
import pytest

import covey

WORLD = 3
# Of 8 ranks, 2 to 5 are gone.
GONE = [1, 4, 0, 4, 0, 1, -1, -1, -1, -1, 2, 3, 0, 1, 6, 7, -1, -1, -1, -1]


@pytest.mark.parametrize("shared", [0, 1, 2])
def test_elastic_info_of_eight_ranks(shared):
    want = [*GONE[:2], shared, 4 - shared, *GONE[4:]]
    active = [1, 1, 0, 0, 0, 0, 1, 1]
    info = covey.ep.to_elastic_info(active, 8 - shared, shared)
    assert info.dtype == np.int32 and info.tolist() == want
    back = covey.ep.from_elastic_info(info, 8 - shared, shared)
    assert back.dtype == np.int32 and back.tolist() == active


def test_elastic_info_of_any_ranks():
    rng = np.random.default_rng(5)
    for _ in range(200):
        size, local = int(rng.integers(1, 17)), int(rng.integers(1, 5))
        shared = int(rng.integers(0, size))
        active = rng.integers(0, 2, size)
        active[int(rng.integers(shared, size))] = 1
        experts = local * (size - shared)
        info = covey.ep.to_elastic_info(active, experts, shared)
        assert info[1:4].tolist() == [active.sum(), active[:shared].sum(), active[shared:].sum() * local]
        for rank in np.flatnonzero(active):
            assert info[4 + size + info[4 + rank]] == rank
        assert covey.ep.from_elastic_info(info, experts, shared).tolist() == active.tolist()
    everybody = covey.ep.to_elastic_info([1, 1, 1], 6)
    assert everybody.tolist() == [0, 3, 0, 6, 0, 1, 2, 0, 1, 2]
    everybody[1:] = 77  # not read: nobody is gone
    assert covey.ep.from_elastic_info(everybody, 6).tolist() == [1, 1, 1]
    other_order = [1, 2, 0, 4, 1, -1, 0, 2, 0, -1]
    assert covey.ep.from_elastic_info(other_order, 6).tolist() == [1, 0, 1]


@pytest.mark.parametrize("at,word,why", [
    (0, 2, r"elastic_info\[0\] is 2"), (1, 5, r"must be \[4, 0, 4\]"), (2, 1, r"must be \[4, 0, 4\]"),
    (3, 8, r"must be \[4, 0, 4\]"), (4, 1, "the new number of rank 0 is 1"), (4, 4, "the new number of rank 0 is 4"),
    (4, -2, "the new number of rank 0 is -2"), (4, -1, r"must be \[3, 0, 3\]"), (12, 3, "the new number of rank 0 is 0"),
    (16, 2, "the second table has ranks past new number 3")])
def test_elastic_info_that_no_ranks_give(at, word, why):
    words = list(GONE)
    words[at] = word
    with pytest.raises(ValueError, match=why):
        covey.ep.from_elastic_info(words, 8)


def test_elastic_info_of_a_wrong_shape():
    for call, why in ((lambda: covey.ep.from_elastic_info(GONE[:-1], 8), "has 19 words"),
                      (lambda: covey.ep.from_elastic_info(GONE, 12), "a multiple of the 8 ranks"),
                      (lambda: covey.ep.to_elastic_info([1, 1], 2, 2), "from 0 to 1"),
                      (lambda: covey.ep.to_elastic_info([1, 0], 2, 1), "one with experts must live"),
                      (lambda: covey.ep.from_elastic_info([1, 1, 1, 0, 0, -1, 0, -1], 2, 1), "no rank from 1 to 1 lives")):
        with pytest.raises(ValueError, match=why):
            call()


def left_out(group):
    """A rank that elasticInfo says is gone is neither waited for nor sent to."""
    T, H, K, E = 4, 16, 2, 6
    info = [1, 2, 0, 4, 0, 1, -1, 0, 1, -1]
    x, ids, weights = np.ones((T, H), np.float32), np.array([[0, 5]] * T, np.int32), np.ones((T, K), np.float32)
    with covey.Ep(group, max_tokens=T, hidden=H, top_k=K, experts=E, preset="win") as pair:
        active = covey.ep.from_elastic_info(info, E)
        routed = pair.dispatch(covey.to_bf16(x), ids, weights, active_ranks=active)
        assert routed.outcome.ranks == ({2} if group.rank == 2 else {0, 1})
        out, outcome = pair.combine(routed.x, routed, ids, weights, active_ranks=active)
        assert outcome.ranks == routed.outcome.ranks and (covey.from_bf16(out) == 1).all()
        seen = covey.ep.to_elastic_info([rank in outcome.ranks for rank in range(group.size)], E)
        assert seen.tolist() == (info if group.rank != 2 else [1, 1, 0, 2, -1, -1, 0, 2, -1, -1])


def test_ranks_that_elastic_info_leaves_out(ranks):
    ranks.run(WORLD, left_out)

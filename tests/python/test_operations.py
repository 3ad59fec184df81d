# SPDX-License-Identifier: Apache-2.0
"""Every operation and type against numpy."""

import numpy as np
import pytest

import covey

WORLD = 3
TYPES = ["int8", "uint8", "int16", "int32", "uint32", "int64", "uint64", "float16", "float32", "float64"]
SIZES = [1, 7, 1000, 70000]


def value(rank, count, dtype):
    """Small whole numbers, so that sums are exact in every type."""
    return ((np.arange(count) * 7 + rank * 3) % 5 + 1).astype(dtype)


FOLD = {"sum": np.add, "prod": np.multiply, "max": np.maximum, "min": np.minimum}


def folded(op, parts):
    result = parts[0].copy()
    for part in parts[1:]:
        result = FOLD[op](result, part)
    return result


def everything(group, dtype, size):
    parts = [value(r, size, dtype) for r in range(WORLD)]
    own, rank = parts[group.rank], group.rank
    for op in FOLD:
        recv = np.zeros_like(own)
        outcome = group.allreduce(own, recv, op)
        assert outcome.ranks == {0, 1, 2} and outcome.size == WORLD
        np.testing.assert_array_equal(recv, folded(op, parts))
    recv = np.zeros((WORLD, size), dtype)
    group.allgather(own, recv)
    np.testing.assert_array_equal(recv, np.stack(parts))
    at = own.copy() if rank == 1 else np.zeros_like(own)
    group.broadcast(at, 1)
    np.testing.assert_array_equal(at, parts[1])
    to = np.zeros_like(own)
    group.reduce(own, to if rank == 2 else None, root=2)
    if rank == 2:
        np.testing.assert_array_equal(to, folded("sum", parts))
    blocks = [np.stack([value(r + 10 * b, size, dtype) for b in range(WORLD)]) for r in range(WORLD)]
    to = np.zeros_like(own)
    group.reduce_scatter(blocks[rank], to)
    np.testing.assert_array_equal(to, folded("sum", [blocks[r][rank] for r in range(WORLD)]))
    recv = np.zeros_like(blocks[0])
    group.alltoall(blocks[rank], recv)
    np.testing.assert_array_equal(recv, np.stack([blocks[r][rank] for r in range(WORLD)]))
    recv = np.zeros((WORLD, size), dtype) if rank == 0 else None
    group.gather(own, recv, 0)
    if rank == 0:
        np.testing.assert_array_equal(recv, np.stack(parts))
    to = np.zeros_like(own)
    group.scatter(blocks[2] if rank == 2 else None, to, 2)
    np.testing.assert_array_equal(to, blocks[2][rank])
    return group.barrier().seq


@pytest.mark.parametrize("dtype", TYPES)
def test_collectives(ranks, dtype):
    assert len(set(ranks.run(WORLD, all_sizes, dtype))) == 1


def all_sizes(group, dtype):
    return [everything(group, dtype, size) for size in SIZES][-1]


def uneven(group):
    """Rank r sends (r + 2 d) % 4 elements to rank d: some none."""
    rank = group.rank
    counts = [[(r + 2 * d) % 4 for d in range(WORLD)] for r in range(WORLD)]
    send = np.concatenate([np.full(counts[rank][d], 10 * rank + d, np.int32) for d in range(WORLD)])
    incoming = [counts[r][rank] for r in range(WORLD)]
    recv = np.zeros(sum(incoming), np.int32)
    group.alltoallv(send, counts[rank], recv, incoming)
    assert recv.tolist() == [10 * r + rank for r in range(WORLD) for _ in range(incoming[r])]
    recv = np.zeros(6, np.float64)
    group.allgatherv(np.full(rank + 1, rank, np.float64), recv, [1, 2, 3])
    assert recv.tolist() == [0, 1, 1, 2, 2, 2]


def works(group):
    arrays = [np.full(1000, group.rank + i, np.int64) for i in range(8)]
    started = [group.allreduce_start(a) for a in arrays]
    for i, work in enumerate(started):
        assert work.wait(timeout=60).ranks == {0, 1, 2}
        assert work.value is arrays[i] and (arrays[i] == 3 + 3 * i).all()
        assert work.test() and work.progress() == "decided"
    with covey.grouped():
        outcomes = [group.allreduce(a, op="max") for a in arrays]
    assert [o.seq for o in outcomes] == list(range(outcomes[0].seq, outcomes[0].seq + 8))
    assert (arrays[3] == 12).all()


def messages(group):
    left, right = (group.rank - 1) % WORLD, (group.rank + 1) % WORLD
    there, here = np.full(5000, group.rank, np.float32), np.zeros(6000, np.float32)
    sending = group.send_start(there, right, tag=4)
    outcome = group.recv(here, left)
    sending.wait()
    assert (outcome.bytes, outcome.peer, outcome.tag) == (20000, left, 4)
    assert (here[:5000] == left).all() and (here[5000:] == 0).all()


def bfloat(group):
    """A type that numpy lacks comes by DLPack or ml_dtypes; here by a class that has DLPack's protocol from ml_dtypes."""
    ml = pytest.importorskip("ml_dtypes")
    x = np.full(100, group.rank + 0.5, ml.bfloat16)
    group.allreduce(x)
    assert (x.astype(np.float32) == 4.5).all()


def test_bfloat16(ranks):
    pytest.importorskip("ml_dtypes")
    ranks.run(WORLD, bfloat)


class OnlyDlpack:
    """An array of another library: all it has is DLPack."""

    def __init__(self, array):
        self.array = array

    def __dlpack__(self, **options):
        return self.array.__dlpack__(**options)

    def __dlpack_device__(self):
        return self.array.__dlpack_device__()


def by_dlpack(group):
    x = np.full((3, 5), group.rank, np.float32)
    group.allreduce(OnlyDlpack(x))
    assert (x == 3).all()
    with pytest.raises(ValueError, match="contiguous"):
        group.allreduce(OnlyDlpack(x.T[1:]))


def registered(group):
    x = group.empty((64, 1024), "int32")
    x[:] = group.rank
    recv = np.zeros_like(x)
    group.allreduce(x, recv)
    assert (recv == 3).all()
    group.barrier()
    group.free(x)


def no_elements(group):
    none, some = np.empty(0, np.float32), np.ones(3, np.float32)
    group.allreduce(none)
    group.broadcast(none, 0)
    group.allgather(none, np.empty((WORLD, 0), np.float32))
    group.alltoallv(none, [0] * WORLD, none.copy(), [0] * WORLD)
    group.alltoallv(*([none, [0] * WORLD, none.copy(), [0] * WORLD] if group.rank == 0 else
                      [some[:WORLD], [0] + [1] * (WORLD - 1), some.copy(), [0] + [1] * (WORLD - 1)]))


@pytest.mark.parametrize("what", [uneven, works, messages, by_dlpack, registered, no_elements])
def test_operation(ranks, what):
    ranks.run(WORLD, what)

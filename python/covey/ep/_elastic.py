# SPDX-License-Identifier: Apache-2.0
"""elasticInfo, with which Ascend's operators learn that ranks are gone, of covey's active_ranks and back.

With R ranks it has 4 + 2 * R words: whether any rank is gone, living ranks, living shared ranks, living experts, the new
number of each rank (-1: gone), the rank of each new number (-1: none). covey itself numbers no rank anew.
"""

from typing import Sequence


def to_elastic_info(active_ranks: Sequence[int], experts: int, shared_ranks: int = 0):
    """elasticInfo, in int32, of active_ranks.

    Args:
        active_ranks: [R]: not 0 if the rank lives; of a Group g: [r in g.view.ranks for r in range(g.size)]
        experts: of all R ranks, without shared ones: as many on each rank that is not shared
        shared_ranks: the first ranks, if they have shared experts alone
    """
    import numpy as np

    active = np.asarray(active_ranks).astype(bool)
    local = _local(len(active), experts, shared_ranks)
    living = np.flatnonzero(active).tolist()
    if not any(rank >= shared_ranks for rank in living):
        raise ValueError(f"active_ranks has no rank from {shared_ranks} to {len(active) - 1}: one with experts must live")
    shared = sum(rank < shared_ranks for rank in living)
    number = {rank: n for n, rank in enumerate(living)}
    ranks = living + [-1] * (len(active) - len(living))
    return np.array([len(living) < len(active), len(living), shared, (len(living) - shared) * local,
                     *(number.get(rank, -1) for rank in range(len(active))), *ranks], np.int32)


def from_elastic_info(elastic_info: Sequence[int], experts: int, shared_ranks: int = 0):
    """active_ranks [R], in int32, of elasticInfo: as Ep.dispatch() and Ep.combine() take it.

    Words that no set of ranks gives are refused. New numbers may be in any order.
    """
    import numpy as np

    words = np.asarray(elastic_info).astype(np.int64).tolist()
    size, odd = divmod(len(words) - 4, 2)
    if odd or size < 1:
        raise ValueError(f"elastic_info has {len(words)} words: it must have 4 + 2 * ranks")
    local = _local(size, experts, shared_ranks)
    if words[0] not in (0, 1):
        raise ValueError(f"elastic_info[0] is {words[0]}: it must be 0, or 1 if a rank is gone")
    if not words[0]:  # the operators read no further
        return np.ones(size, np.int32)
    number, ranks = words[4:4 + size], words[4 + size:]
    living = [rank for rank in range(size) if number[rank] != -1]
    shared = sum(rank < shared_ranks for rank in living)
    head = [len(living), shared, (len(living) - shared) * local]
    if words[1:4] != head:
        raise ValueError(f"elastic_info[1:4] is {words[1:4]}: by its first table it must be {head}")
    for rank in living:
        if not 0 <= number[rank] < len(living) or ranks[number[rank]] != rank:
            raise ValueError(f"the new number of rank {rank} is {number[rank]}: it must be -1, or one below {len(living)} "
                             f"of which the second table says {rank}")
    if any(rank != -1 for rank in ranks[len(living):]):
        raise ValueError(f"the second table has ranks past new number {len(living) - 1}: they must be -1")
    if len(living) == shared:
        raise ValueError(f"no rank from {shared_ranks} to {size - 1} lives: one with experts must")
    return np.array([int(n != -1) for n in number], np.int32)


def _local(ranks: int, experts: int, shared_ranks: int) -> int:
    """Experts of a rank that is not shared."""
    if not 0 <= shared_ranks < ranks:
        raise ValueError(f"shared_ranks is {shared_ranks}: it must be from 0 to {ranks - 1}")
    if experts < 1 or experts % (ranks - shared_ranks):
        raise ValueError(f"experts is {experts}: it must be a multiple of the {ranks - shared_ranks} ranks that have them")
    return experts // (ranks - shared_ranks)

# SPDX-License-Identifier: Apache-2.0
"""The sum of sparse tensors, as gloo makes it: indices and values of all ranks are gathered, and added in their order."""

from typing import Any

import torch
from torch.distributed import ReduceOp

from .._plain import plain
from ._tensors import bytes_of, places


@plain
def sparse_allreduce(group: Any, t: torch.Tensor, opts: Any) -> Any:
    """In place: @t becomes the coalesced sum over all contributors. The call waits for the number of their elements."""
    op = ReduceOp.SUM if opts is None else getattr(opts, "reduceOp", opts)
    if op != ReduceOp.SUM or t.layout is not torch.sparse_coo or t.is_cuda:
        raise TypeError(f"all_reduce of a {t.layout} tensor on {t.device.type}: covey has SUM of sparse_coo on the host")
    mine = t.detach().coalesce()
    sent = [mine.indices().contiguous(), mine.values().contiguous()]
    counts = [torch.zeros(1, dtype=torch.int64, device="cpu") for _ in range(group.size())]
    told = group.allgather([counts], [torch.tensor([mine._nnz()], device="cpu")], opts)
    told.wait()
    n = [int(count) if r in told.ranks else 0 for r, count in enumerate(counts)]
    rooms = [[sent[0].new_empty(len(sent[0]), k) for k in n], [sent[1].new_empty(k, *sent[1].shape[1:]) for k in n]]
    flats = [source.new_empty(sum(t.numel() for t in blocks)) for source, blocks in zip(sent, rooms)]
    calls = [("covey_allgatherv", (source.data_ptr(), bytes_of(source)[0], room.data_ptr(),
                                   *places([bytes_of(b)[0] for b in blocks]), bytes_of(source)[1]))
             for source, room, blocks in zip(sent, flats, rooms)]

    @plain
    def add(outcomes: list) -> None:
        ranks = sorted(frozenset.intersection(told.ranks, *(outcome.ranks for outcome in outcomes)))
        indices, values = ([part.view(block.shape) for part, block in zip(room.split([b.numel() for b in blocks]), blocks)]
                           for room, blocks in zip(flats, rooms))
        t.copy_(torch.sparse_coo_tensor(torch.cat([indices[r] for r in ranks], 1),
                                        torch.cat([values[r] for r in ranks]), t.shape).coalesce())
        t._coalesced_(True)

    return group._host(calls, [t], opts, add, (sent, flats))

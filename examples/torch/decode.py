# SPDX-License-Identifier: Apache-2.0
"""Decode steps of a Mixture of Experts on covey.ep.Buffer. A rank dies in one of them, and a replacement comes in.

    python -m covey.run -n 3 --restart=on-failure -- python examples/torch/decode.py

Expert e multiplies its rows by e + 1. Each step checks what came back against the mask.
"""

import os
import signal

import torch

from covey.ep import Buffer

RANKS, PER_RANK, TOKENS, HIDDEN, TOP_K = 3, 4, 16, 256, 2


def step(buffer, x, ids, weights):
    """The layer's output, and the ranks that are masked."""
    rows, count, handle, _, hook = buffer.dispatch(x, ids, TOKENS, RANKS * PER_RANK, use_fp8=False,
                                                   return_recv_hook=True)
    hook()
    factors = torch.arange(PER_RANK) + buffer.rank * PER_RANK + 1
    y = rows * factors[:, None, None].to(rows.dtype)
    out, _, hook = buffer.combine(y, ids, weights, handle, return_recv_hook=True)
    hook()
    mask = torch.zeros(RANKS, dtype=torch.int32)
    buffer.query_mask_buffer(mask)
    return out, mask


def main():
    rank = int(os.environ["COVEY_RANK"])
    replaces = os.environ.get("COVEY_CREATE") == "never"
    buffer = Buffer(rank=rank, explicitly_destroy=True)
    buffer.update_memory_buffers(RANKS, PER_RANK, Buffer.get_rdma_size_hint(TOKENS, HIDDEN, RANKS, RANKS * PER_RANK))
    buffer.connect_ranks(range(RANKS))
    torch.manual_seed(rank)
    x = torch.randint(0, 8, (TOKENS, HIDDEN)).to(torch.bfloat16)
    weights = torch.full((TOKENS, TOP_K), 0.5)
    done, lost = 0, replaces
    while done < 20:
        buffer.admit()  # the safe point
        ids = torch.randint(0, RANKS * PER_RANK, (TOKENS, TOP_K))
        if rank == 1 and done == 10 and not replaces:
            os.kill(os.getpid(), signal.SIGKILL)
        out, mask = step(buffer, x, ids, weights)
        here = mask[ids // PER_RANK] == 0
        factor = ((ids + 1) * weights * here).sum(1)
        assert torch.equal(out, (x * factor[:, None]).to(torch.bfloat16))
        if bool(mask.any()) and not lost:
            print(f"rank {rank}: rank {mask.nonzero().view(-1).tolist()} is gone after {done} steps", flush=True)
        lost = lost or bool(mask.any())
        done += not (lost and bool(mask.any()))  # the last ten are with the replacement
        together = torch.tensor([done])
        buffer.calls.group.allreduce(together, op="max")
        done = int(together)
    buffer.destroy()
    print(f"rank {rank} has done {done} steps", flush=True)


if __name__ == "__main__":
    main()

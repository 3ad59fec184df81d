# SPDX-License-Identifier: Apache-2.0
"""A layer of experts by plain arithmetic, for clients whose dispatch and combine run over covey.

Tokens and matrices come from seeds, so each rank knows what all others have.
"""

import torch

TOKENS, HIDDEN, INNER, TOP_K, PER_RANK = 16, 2048, 64, 3, 2


def matrices(expert):
    draw = torch.Generator().manual_seed(expert)
    return torch.randn(2 * INNER, HIDDEN, generator=draw) / 32, torch.randn(HIDDEN, INNER, generator=draw) / 8


def compute(x, w1, w2):
    """An expert's answer to its rows."""
    gate, up = (x @ w1.T).chunk(2, -1)
    return (torch.nn.functional.silu(gate) * up) @ w2.T


def inputs(rank, step, experts):
    """Tokens of @rank, and for each of them ids and weights of its experts."""
    draw = torch.Generator().manual_seed(100 * step + rank)
    n = int(torch.randint(1, TOKENS + 1, (1,), generator=draw))
    ids = torch.stack([torch.randperm(experts, generator=draw)[:TOP_K] for _ in range(n)])
    return torch.randn(n, HIDDEN, generator=draw).to(torch.bfloat16), ids, torch.rand(n, TOP_K, generator=draw)


def check(out, x, ids, weights, fp8, present):
    """@out is what the experts of the ranks @present give, up to rounding."""
    x = floats(*quantize(x, 128)) if fp8 else x.float()
    want = torch.zeros(x.shape)
    for t, k in torch.cartesian_prod(torch.arange(len(x)), torch.arange(TOP_K)):
        if int(ids[t, k]) // PER_RANK in present:
            want[t] += weights[t, k] * compute(x[t], *matrices(int(ids[t, k])))
    assert torch.allclose(out.float(), want, atol=0.02 * float(want.abs().max())), (out.float() - want).abs().max()


def quantize(x, group):
    """Codes of e4m3 and their scales, by groups of columns: what clients have kernels of Triton for."""
    parts = x.float().view(*x.shape[:-1], -1, group)
    scales = parts.abs().amax(-1, keepdim=True).clamp(min=1e-4) / 448
    return (parts / scales).view(x.shape).to(torch.float8_e4m3fn), scales.squeeze(-1)


def floats(x, scales):
    return x.float() if scales is None else (x.float().view(*scales.shape, -1) * scales[..., None]).view(x.shape)

# SPDX-License-Identifier: Apache-2.0
"""One step of a Mixture of Experts on a buffer, checked against plain arithmetic.

All numbers are small and exact: a rank knows what every other one sends, so it knows what it must get.
"""

import torch

TOKENS, HIDDEN, TOP_K = 6, 256, 3


def inputs(rank, step, experts, ids_dtype=torch.int64):
    """Tokens, ids and weights of @rank in @step: some ids are -1, some tokens name an expert twice."""
    random = torch.Generator().manual_seed(1000 * step + rank)
    n = int(torch.randint(0, TOKENS + 1, (1,), generator=random))
    x = torch.randint(-8, 9, (n, HIDDEN), generator=random).to(torch.bfloat16)
    ids = torch.randint(-1, experts, (n, TOP_K), generator=random)
    for expert in range(experts):  # a source has room for as many rows of an expert as it may have tokens
        ids.view(-1)[(ids.view(-1) == expert).nonzero().view(-1)[TOKENS:]] = -1
    weights = torch.randint(1, 9, (n, TOP_K), generator=random) / 8
    return x, ids.to(ids_dtype), weights


def result(expert, rows):
    """What an expert makes of its rows."""
    return rows * (1 + expert % 4)


def to_e4m3(x):
    """Codes and scales, by groups of 128."""
    groups = x.float().view(len(x), HIDDEN // 128, 128)
    largest = groups.abs().amax(2).clamp(min=1e-4)
    codes = (groups * (448 / largest)[:, :, None]).to(torch.float8_e4m3fn)
    return codes.view(x.shape), largest / 448


def from_e4m3(codes, scales):
    return (codes.float().view(len(codes), HIDDEN // 128, 128) * scales[:, :, None]).view(codes.shape).to(torch.bfloat16)


def expected_rows(expert, sources, step, experts):
    """(rows, place on their source, source) of an expert."""
    rows, places, froms = [], [], []
    for source in sources:
        x, ids, _ = inputs(source, step, experts)
        for t in range(len(x)):
            for k in range(TOP_K):
                if ids[t, k] == expert:
                    rows.append(x[t])
                    places.append(t)
                    froms.append(source)
    rows = torch.stack(rows) if rows else torch.empty(0, HIDDEN, dtype=torch.bfloat16)
    return rows, places, froms


def check_rows(first, per_rank, recv_x, count, handle, sources, step, experts):
    src_info, layout = handle[0], handle[1]
    for e in range(per_rank):
        rows, places, froms = expected_rows(first + e, sources, step, experts)
        n = len(rows)
        assert count[e] == n, (count[e], n)
        if isinstance(recv_x, tuple):
            codes, scales = to_e4m3(rows)
            assert torch.equal(recv_x[0][e, :n].float(), codes.float())
            assert torch.allclose(recv_x[1][e, :n], scales, rtol=1e-6)
        else:
            assert torch.equal(recv_x[e, :n], rows)
        assert src_info[e, :n].tolist() == places
        for source in range(layout.shape[1]):
            here = froms.count(source)
            assert layout[e, source] & 0xffffffff == here
            assert not here or layout[e, source] >> 32 == froms.index(source)


def expected_out(rank, step, experts, per_rank, owners):
    x, ids, weights = inputs(rank, step, experts)
    out = torch.zeros(x.shape)
    for t in range(len(x)):
        for k in range(TOP_K):
            expert = int(ids[t, k])
            if expert >= 0 and expert // per_rank in owners:
                out[t] += weights[t, k] * result(expert, x[t]).float()
    return out.to(torch.bfloat16)


def check_out(out, rank, step, experts, per_rank, owners, exact):
    want = expected_out(rank, step, experts, per_rank, owners)
    if exact:
        assert torch.equal(out, want)
    else:
        assert torch.allclose(out.float(), want.float(), atol=0.05 * max(1, float(want.float().abs().max()) if len(want) else 1))


def results(first, recv_x, count):
    """Of all local experts, in the rows that they got."""
    rows = recv_x
    if isinstance(recv_x, tuple):
        rows = torch.stack([from_e4m3(recv_x[0][e], recv_x[1][e]) for e in range(len(count))])
    y = torch.full(rows.shape, float("nan"), dtype=torch.bfloat16)  # rows past the count are nobody's
    for e, n in enumerate(count.tolist()):
        y[e, :n] = result(first + e, rows[e, :n])
    return y

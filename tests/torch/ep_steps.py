# SPDX-License-Identifier: Apache-2.0
"""One step of a Mixture of Experts on a buffer, checked against plain arithmetic.

All numbers are small and exact: a rank knows what every other one sends, so it knows what it must get.
"""

import numpy as np
import torch
from children import die

TOKENS, HIDDEN, TOP_K, PER_RANK, CAPACITY = 6, 512, 3, 2, 6
SCALES = {"f32": {}, "pow2": {"round_scale": True}, "ue8m0": {"round_scale": True, "use_ue8m0": True}}


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


def to_e4m3(x, scales="f32"):
    """Codes and scales, by groups of 128: as DeepEP computes them."""
    groups = x.float().view(len(x), HIDDEN // 128, 128)
    largest = groups.abs().amax(2).clamp(min=1e-4)
    by, scale = 448 / largest, largest / 448
    if scales != "f32":
        bits = (largest * torch.tensor(1 / 448)).numpy().view(np.int32)
        exponent = (bits >> 23) - 127 + ((bits & (1 << 23) - 1) != 0)
        scale, by = torch.from_numpy(np.ldexp(np.float32(1), exponent)), torch.from_numpy(np.ldexp(np.float32(1), -exponent))
    return (groups * by[:, :, None]).to(torch.float8_e4m3fn).view(x.shape), scale


def floats(scales):
    """Scales as float32, also if they are four exponents in an int32."""
    if scales.dtype is torch.float32:
        return scales
    exponents = scales.contiguous().numpy().view(np.uint8).astype(np.uint32)
    return torch.from_numpy((exponents << 23).view(np.float32))


def from_e4m3(codes, scales):
    scales = floats(scales)
    groups = codes.float().view(len(codes), HIDDEN // 128, 128)
    return (groups * scales[:, :, None]).view(codes.shape).to(torch.bfloat16)


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


def check_rows(first, per_rank, recv_x, count, handle, sources, step, experts, scales="f32"):
    src_info, layout = handle[0], handle[1]
    for e in range(per_rank):
        rows, places, froms = expected_rows(first + e, sources, step, experts)
        n = len(rows)
        assert count[e] == n, (count[e], n)
        if isinstance(recv_x, tuple):
            codes, want = to_e4m3(rows, scales)
            assert torch.equal(recv_x[0][e, :n].float(), codes.float())
            assert recv_x[1].dtype is (torch.int32 if scales == "ue8m0" else torch.float32)
            assert recv_x[1].stride(1) == 1  # by column
            assert torch.allclose(floats(recv_x[1][e, :n]), want, rtol=1e-6 if scales == "f32" else 0, atol=0)
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
        largest = float(want.abs().max()) if len(want) else 0
        assert torch.allclose(out.float(), want.float(), atol=0.05 * max(1, largest))


def results(first, recv_x, count):
    """Of all local experts, in the rows that they got."""
    rows = recv_x
    if isinstance(recv_x, tuple):
        rows = torch.stack([from_e4m3(recv_x[0][e], recv_x[1][e]) for e in range(len(count))])
    y = torch.full(rows.shape, float("nan"), dtype=torch.bfloat16)  # rows past the count are nobody's
    for e, n in enumerate(count.tolist()):
        y[e, :n] = result(first + e, rows[e, :n])
    return y


def masked(buffer):
    status = torch.full((buffer.group_size,), -1, dtype=torch.int32)
    buffer.query_mask_buffer(status)
    return [r for r in range(buffer.group_size) if status[r]]


def step(buffer, number, use_fp8=False, ids_dtype=torch.int64, how="plain", dies=None, size=0,
         scales="f32"):
    """Dispatch, experts, combine. @dies: where this rank does.

    Returns:
        the masks behind the dispatch and behind the combine
    """
    rank, experts = buffer.rank, (size or buffer.calls.size) * PER_RANK
    x, ids, weights = inputs(rank, number, experts, ids_dtype)
    stats = torch.ones(PER_RANK, dtype=torch.int32)
    waits = torch.zeros(buffer.group_size, dtype=torch.int64)
    asks = {"async_finish": how == "event", "return_recv_hook": how == "hook"}
    if dies == "before":
        die()
    recv_x, count, handle, event, hook = buffer.dispatch(
        x, ids, TOKENS, experts, cumulative_local_expert_recv_stats=stats, dispatch_wait_recv_cost_stats=waits,
        use_fp8=use_fp8, **SCALES[scales], **asks)
    if dies == "sent":
        die()
    hook() if how == "hook" else event.current_stream_wait() if how == "event" else None
    if dies == "between":
        die()
    first = masked(buffer)
    sources = [r for r in range(buffer.group_size) if r not in first]
    check_rows(rank * PER_RANK, PER_RANK, recv_x, count, handle, sources, number, experts, scales)
    assert torch.equal(stats, count + 1)
    y = results(rank * PER_RANK, recv_x, count)
    if how == "event":  # without a copy, too
        buffer.get_next_combine_buffer(handle)[:] = y
    out = torch.full((len(x), HIDDEN), float("nan"), dtype=torch.bfloat16)
    combined, event, hook = buffer.combine(y, ids, weights, handle, zero_copy=how == "event", out=out,
                                           combine_wait_recv_cost_stats=waits, **asks)
    hook() if how == "hook" else event.current_stream_wait() if how == "event" else None
    second = masked(buffer)
    assert combined is out
    owners = [r for r in range(buffer.group_size) if r not in second]
    check_out(out, rank, number, experts, PER_RANK, owners, not use_fp8)
    return first, second

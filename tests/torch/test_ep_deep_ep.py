# SPDX-License-Identifier: Apache-2.0
"""covey.ep.deep_ep: low latency, normal mode and ElasticBuffer, against plain arithmetic, on two kinds of groups."""

import os

import pytest
import torch
import torch.distributed as dist
from conftest import die
from ep_steps import HIDDEN, PER_RANK, TOKENS, TOP_K, from_e4m3, inputs, masked, result, step, to_e4m3

import covey.ep.deep_ep as deep_ep


class LowLatency:
    """A buffer of DeepEP by the names of NIXL EP, for step()."""

    def __init__(self, buffer):
        self.rank, self.group_size, self.calls = buffer.rank, buffer.group_size, buffer.calls
        self.dispatch, self.combine = buffer.low_latency_dispatch, buffer.low_latency_combine
        self.query_mask_buffer = buffer.low_latency_query_mask_buffer
        self.get_next_combine_buffer = buffer.get_next_low_latency_combine_buffer


def low_latency(group):
    size = deep_ep.Buffer.get_low_latency_rdma_size_hint(TOKENS, HIDDEN, group.size(), PER_RANK * group.size())
    buffer = deep_ep.Buffer(group, 0, size, low_latency_mode=True, num_qps_per_rank=PER_RANK, allow_mnnvl=True,
                            explicitly_destroy=True)
    names = LowLatency(buffer)
    for number in range(12):
        how = ("plain", "hook", "event")[number % 3]
        assert step(names, number, number % 2 == 1, (torch.int32, torch.int64)[number // 6], how) == ([], [])
    buffer.clean_low_latency_buffer(TOKENS, HIDDEN, PER_RANK * group.size())
    buffer.low_latency_clean_mask_buffer()
    with pytest.raises(TypeError, match="use_nvfp4=True"):
        buffer.low_latency_dispatch(torch.ones(1, HIDDEN), torch.zeros(1, TOP_K, dtype=torch.int64), TOKENS, 6,
                                    use_nvfp4=True)
    with pytest.raises(ValueError, match="num_experts is 7"):
        buffer.low_latency_dispatch(torch.ones(1, HIDDEN), torch.zeros(1, TOP_K, dtype=torch.int64), TOKENS, 7)
    buffer.destroy()


def test_low_latency(ranks):
    ranks.run(3, low_latency, device="none")


def loses_one(group):
    buffer = deep_ep.Buffer(group, low_latency_mode=True, enable_shrink=True, explicitly_destroy=True)
    names, masks = LowLatency(buffer), []
    for number in range(5):
        step(names, number, dies="between" if (group.rank(), number) == (2, 2) else None)
        buffer.calls.barrier()
        masks.append(masked(names))
    buffer.destroy()
    return masks


def test_a_rank_dies_in_low_latency(ranks):
    first, second, _ = ranks.run(3, loses_one, killed=[2], device="none", on_loss="continue")
    assert first == second == [[], [], [2], [2], [2]]


# ---- normal mode ----


def experts_here(rank, ids):
    """The local ids of a token's experts on @rank; -1 for others."""
    here = (ids // PER_RANK == rank) & (ids >= 0)
    return torch.where(here, ids % PER_RANK, -1)


def expected(rank, sources, step_of, experts):
    """(rows, local ids, weights) that @rank gets."""
    parts = []
    for source in sources:
        x, ids, weights = inputs(source, step_of, experts)
        local = experts_here(rank, ids)
        goes = (local >= 0).any(1)
        parts.append((x[goes], local[goes], torch.where(local >= 0, weights, 0)[goes]))
    return [torch.cat(part) for part in zip(*parts)]


def work(rank, rows, ids, weights):
    """The weighted sum of a rank's experts, as bfloat16."""
    sums = torch.zeros(rows.shape)
    for k in range(TOP_K):
        for e in range(PER_RANK):
            on = ids[:, k] == e
            sums[on] += weights[on, k, None] * result(rank * PER_RANK + e, rows[on]).float()
    return sums.to(torch.bfloat16)


def expected_sum(rank, owners, number, experts):
    x, ids, weights = inputs(rank, number, experts)
    parts = [work(owner, x, experts_here(owner, ids), weights).float() for owner in owners]
    return sum(parts).to(torch.bfloat16) if parts else torch.zeros_like(x)


def normal_step(buffer, number, size, how, codes=False, worst=0, alignment=1, owners=None, dies=False):
    """Dispatch, a cached dispatch, and combine. Returns nothing: it checks."""
    rank, experts = buffer.rank, PER_RANK * size
    sources = list(range(size))
    x, ids, weights = inputs(rank, number, experts)
    sent = to_e4m3(x) if codes else x
    asks = {"async_finish": how == "event", "previous_event": buffer.capture() if how == "event" else None,
            "allocate_on_comm_stream": how == "event"}
    per_rank, rdma, per_expert, there, event = buffer.get_dispatch_layout(ids, experts, **asks)
    event.current_stream_wait() if how == "event" else None
    assert rdma is None and per_expert.tolist() == [int((ids == e).sum()) for e in range(experts)]
    assert torch.equal(there, torch.stack([(experts_here(r, ids) >= 0).any(1) for r in range(size)], 1))
    assert torch.equal(per_rank, there.sum(0).int())
    if dies:
        die()
    recv_x, recv_ids, recv_weights, counts, handle, event = buffer.dispatch(
        sent, num_tokens_per_rank=per_rank, num_tokens_per_rdma_rank=rdma, is_token_in_rank=there,
        num_tokens_per_expert=per_expert, topk_idx=ids, topk_weights=weights, expert_alignment=alignment,
        num_worst_tokens=worst, config=buffer.get_dispatch_config(size), **asks)
    event.current_stream_wait() if how == "event" else None
    gone = masked_of(buffer, size)
    sources = [r for r in sources if r not in gone]
    rows, local, of_rows = expected(rank, sources, number, experts)
    n = len(rows)
    got = from_e4m3(*(part[:n] for part in recv_x)) if codes else recv_x[:n]
    assert torch.equal(got, from_e4m3(*to_e4m3(rows)) if codes else rows)
    assert torch.equal(recv_ids[:n], local) and torch.equal(recv_weights[:n], of_rows)
    assert recv_ids.dtype == ids.dtype
    if worst:
        assert len(recv_ids) == worst and counts == [] and (recv_ids[n:] == -1).all()
    else:
        exact = [int((local == e).sum(0).sum()) for e in range(PER_RANK)]
        rows_of = [int((local == e).any(1).sum()) for e in range(PER_RANK)]
        assert len(recv_ids) == n and counts == [-(-c // alignment) * alignment for c in rows_of], (counts, exact)
        twice = buffer.dispatch(sent, handle=handle, **asks)
        assert twice[1:5] == (None, None, None, None)
        for again, once in zip(twice[0], recv_x) if codes else ((twice[0], recv_x),):
            assert torch.equal(again[:n].float(), once[:n].float())
    y = torch.zeros((len(recv_ids), HIDDEN), dtype=torch.bfloat16)
    y[:n] = work(rank, got, local, of_rows)
    bias = torch.full(x.shape, 4.0, dtype=torch.bfloat16)
    given = torch.zeros(recv_weights.shape)
    given[:n] = of_rows * 1.2345678
    out, back, event = buffer.combine(y, handle, topk_weights=given, bias=(bias, bias) if number % 2 else None,
                                      config=buffer.get_combine_config(size), **asks)
    event.current_stream_wait() if how == "event" else None
    owners = [r for r in range(size) if r not in masked_of(buffer, size)]
    want = expected_sum(rank, owners, number, experts)
    if number % 2:
        want = (want.float() + 8).to(torch.bfloat16)
    assert torch.allclose(out.float(), want.float(), atol=0.05 * max(1, float(want.abs().max() if len(want) else 1))) \
        if codes else torch.equal(out, want)
    here = (ids >= 0) & torch.isin(ids // PER_RANK, torch.tensor(owners))
    sent_back = torch.where(ids >= 0, weights * 1.2345678, 0)
    assert torch.equal(back[here], sent_back[here])
    assert ((back == 0) | (back == sent_back))[~here].all()  # weights go first: a rank may die behind them
    assert len(owners) < size or (back[~here] == 0).all()


def masked_of(buffer, size):
    status = torch.zeros(size, dtype=torch.int32)
    buffer.low_latency_query_mask_buffer(status)
    return [r for r in range(size) if status[r]]


def normal(group):
    size = group.size()
    config = deep_ep.Config(num_sms=20)
    bytes_needed = config.get_nvl_buffer_size_hint(2 * HIDDEN, size)
    assert config.get_rdma_buffer_size_hint(2 * HIDDEN, size) == 0
    buffer = deep_ep.Buffer(group, bytes_needed, 0, explicitly_destroy=True)
    buffer.set_num_sms(24)
    for number in range(6):
        normal_step(buffer, number, size, ("plain", "event")[number % 2], codes=number % 3 == 2,
                    worst=(number == 3) * TOKENS * size, alignment=(1, 8)[number // 2 % 2])
    x, ids, _ = inputs(group.rank(), 0, PER_RANK * size)
    with pytest.raises(ValueError, match="covey routes by topk_idx"):
        buffer.dispatch(x, is_token_in_rank=torch.ones(len(x), size, dtype=torch.bool))
    assert step(LowLatency(buffer), 7) == ([], [])  # both modes on one buffer
    buffer.destroy()


@pytest.mark.parametrize("world", [1, 3])
def test_normal_mode(ranks, world):
    ranks.run(world, normal, device="none")


def loses_one_in_normal_mode(group):
    buffer = deep_ep.Buffer(group, explicitly_destroy=True)
    for number in range(5):
        normal_step(buffer, number, 3, "plain", dies=(group.rank(), number) == (0, 2))
    gone = masked_of(buffer, 3)
    buffer.destroy()
    return gone


def test_a_rank_dies_in_normal_mode(ranks):
    answers = ranks.run(3, loses_one_in_normal_mode, killed=[0], device="none", on_loss="continue")
    assert answers == [None, [0], [0]]


def elastic(group):
    """As SGLang calls it."""
    size, rank = group.size(), group.rank()
    experts = PER_RANK * size
    buffer = deep_ep.ElasticBuffer(group, num_max_tokens_per_rank=TOKENS, hidden=HIDDEN, num_topk=TOP_K,
                                   use_fp8_dispatch=False, allow_hybrid_mode=False, sl_idx=0,
                                   prefer_overlap_with_compute=False, explicitly_destroy=True)
    assert buffer.num_bytes % (2 << 20) == 0 and buffer.get_logical_domain_size() == (1, size)
    sms = buffer.get_theoretical_num_sms(experts, TOP_K)
    for number, looks in enumerate((True, False, None, True)):
        x, ids, weights = inputs(rank, number, experts)
        stats = torch.zeros(PER_RANK, dtype=torch.int32)
        recv_x, recv_ids, recv_weights, handle, event = buffer.dispatch(
            x, ids, weights, stats, num_experts=experts, num_max_tokens_per_rank=TOKENS, expert_alignment=4, num_sms=sms,
            num_qps=buffer.get_theoretical_num_qps(sms), do_cpu_sync=looks, async_with_compute_stream=True)
        event.current_stream_wait()
        rows, local, of_rows = expected(rank, range(size), number, experts)
        n = len(rows)
        assert torch.equal(recv_x[:n], rows) and torch.equal(recv_ids[:n], local)
        assert torch.equal(recv_weights[:n], of_rows) and (recv_ids[n:] == -1).all()
        assert handle.num_recv_tokens == (size * TOKENS if looks is False else n) == len(recv_x)
        exact = torch.tensor([int((local == e).any(1).sum()) for e in range(PER_RANK)], dtype=torch.int32)
        aligned = (exact + 3) // 4 * 4
        assert torch.equal(stats, exact)
        assert handle.num_recv_tokens_per_expert_list == ([] if looks is False else aligned.tolist())
        assert torch.equal(handle.psum_num_recv_tokens_per_expert, aligned.cumsum(0).int())
        assert int(handle.psum_num_recv_tokens_per_scaleup_rank[-1]) == n and not handle.do_expand
        again = buffer.dispatch(x, handle=handle, do_cpu_sync=False)
        assert torch.equal(again[0][:n], rows)
        y = torch.zeros((len(recv_x), HIDDEN), dtype=torch.bfloat16)
        y[:n] = work(rank, rows, local, of_rows)
        out, back, event = buffer.combine(y, handle, num_sms=sms, async_with_compute_stream=True)
        with event(release_handle=True):
            pass
        assert torch.equal(out, expected_sum(rank, range(size), number, experts)) and back is None
        assert event.event is None
    with pytest.raises(TypeError, match="do_expand=True: rows are those of tokens"):
        buffer.dispatch(x, ids, weights, num_experts=experts, do_expand=True)
    buffer.barrier()
    buffer.destroy()


def test_elastic_buffer(ranks):
    ranks.run(2, elastic, device="none")


def by_gloo(pipe, rank, path, store):
    os.environ["COVEY_STORE"] = store
    dist.init_process_group("gloo", store=dist.FileStore(path, 2), rank=rank, world_size=2)
    low_latency(dist.group.WORLD)
    dist.destroy_process_group()
    pipe.send("fine")


def test_over_a_group_of_another_backend(store, tmp_path):
    context, pipes = torch.multiprocessing.get_context("spawn"), []
    for rank in range(2):
        pipe, child = context.Pipe()
        context.Process(target=by_gloo, daemon=True, args=(child, rank, str(tmp_path / "store"), store)).start()
        child.close()
        pipes.append(pipe)
    for pipe in pipes:
        assert pipe.poll(120) and pipe.recv() == "fine"

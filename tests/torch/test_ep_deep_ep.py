# SPDX-License-Identifier: Apache-2.0
"""covey.ep.deep_ep: low latency, normal mode and ElasticBuffer, against plain arithmetic, on two kinds of groups."""

import contextlib
import os
import types

import pytest
import torch
import torch.distributed as dist
from children import die
from ep_steps import HIDDEN, PER_RANK, TOKENS, TOP_K, from_e4m3, inputs, masked, result, step, to_e4m3

import covey.ep.deep_ep as deep_ep
from covey.ep._calls import Calls


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
        assert step(names, number, True, how=how, scales=("pow2", "ue8m0")[number % 2]) == ([], [])
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
    return sum(parts) if parts else torch.zeros(x.shape)


def normal_step(buffer, number, size, how, codes=False, worst=0, alignment=1, owners=None, dies=False):
    """Dispatch, a cached dispatch, and combine. Returns nothing: it checks."""
    rank, experts = buffer.rank, PER_RANK * size
    sources = list(range(size))
    x, ids, weights = inputs(rank, number, experts)
    sent = to_e4m3(x) if codes else x
    if codes:  # column-major, as kernels that make scales have them
        sent = sent[0], sent[1].t().contiguous().t()
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
    want = (want + 8 if number % 2 else want).to(torch.bfloat16)
    assert torch.allclose(out.float(), want.float(), atol=0.05 * max(1, float(want.abs().max() if len(want) else 1))) \
        if codes else torch.equal(out, want)
    here = (ids >= 0) & torch.isin(ids // PER_RANK, torch.tensor(owners))
    sent_back = torch.where(ids >= 0, weights * 1.2345678, 0)
    assert torch.equal(back[here], sent_back[here])
    assert ((back == 0) | (back == sent_back))[~here].all()  # weights go first: a rank may die behind them
    assert len(owners) < size or (back[~here] == 0).all()


def without_ids(buffer, number, size):
    """As DeepEP's own test calls it: where tokens go is known, and their experts are not. Handles are taken apart."""
    rank, experts = buffer.rank, PER_RANK * size
    x, ids, weights = inputs(rank, number, experts)
    per_rank, _, per_expert, there, _ = buffer.get_dispatch_layout(ids, experts)
    asks = {"num_tokens_per_rank": per_rank, "is_token_in_rank": there, "num_tokens_per_expert": per_expert}
    recv_x, recv_ids, recv_weights, counts, handle, _ = buffer.dispatch(x, expert_alignment=4, **asks)
    rows, local, _ = expected(rank, range(size), number, experts)
    assert recv_ids is None and recv_weights is None and torch.equal(recv_x, rows)
    assert counts == [-(-int((local == e).sum()) // 4) * 4 for e in range(PER_RANK)]
    prefix, channels, recv_channels, tokens, in_rank, head = parts = tuple(handle)
    sent = [expected(rank, [source], number, experts)[0] for source in range(size)]
    assert prefix[:, rank].tolist() == torch.tensor([len(part) for part in sent]).cumsum(0).tolist()
    assert (channels, recv_channels, head) == (None, None, None) and torch.equal(in_rank, there)
    assert len(tokens) == len(recv_x)
    del handle  # its parts are enough
    assert torch.equal(buffer.dispatch(x, handle=parts)[0], rows)
    out, back, _ = buffer.combine(recv_x, list(parts))
    assert torch.equal(out, x * there.sum(1, keepdim=True)) and back is None
    with pytest.raises(ValueError, match="no topk_idx"):
        buffer.combine(recv_x, parts, topk_weights=torch.ones(len(recv_x), TOP_K))
    with pytest.raises(ValueError, match="no num_worst_tokens"):
        buffer.dispatch(x, num_worst_tokens=64, **asks)
    with pytest.raises(TypeError, match="handle is tuple"):
        buffer.combine(recv_x, (1, 2))


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
    assert {shape.lanes for shape in buffer.calls.pairs} == {24}
    x, ids, weights = inputs(group.rank(), 0, PER_RANK * size)
    buffer.dispatch(x, topk_idx=ids, topk_weights=weights, config=config,
                    num_tokens_per_expert=torch.zeros(PER_RANK * size, dtype=torch.int32))
    assert {shape.lanes for shape in buffer.calls.pairs} == {24, 20}
    with pytest.raises(ValueError, match="from 2 to 128"):
        buffer.set_num_sms(130)
    for number in range(3):
        without_ids(buffer, number, size)
    with pytest.raises(ValueError, match="num_tokens_per_expert, or topk_idx, is None"):
        buffer.dispatch(x, is_token_in_rank=torch.ones(len(x), size, dtype=torch.bool))
    assert step(LowLatency(buffer), 7) == ([], [])  # both modes on one buffer
    buffer.destroy()


@pytest.mark.parametrize("world", [1, 3])
def test_normal_mode(ranks, world):
    ranks.run(world, normal, device="none")


def rounds_once(group):
    """Rows of two ranks, whose sum is halfway between two numbers: biases decide which."""
    buffer = deep_ep.Buffer(group, explicitly_destroy=True)
    x, ids = torch.ones((1, HIDDEN), dtype=torch.bfloat16), torch.tensor([[0, PER_RANK]])
    per_rank, _, per_expert, there, _ = buffer.get_dispatch_layout(ids, 2 * PER_RANK)
    rows, *_, handle, _ = buffer.dispatch(x, num_tokens_per_rank=per_rank, is_token_in_rank=there,
                                          num_tokens_per_expert=per_expert, topk_idx=ids, topk_weights=torch.ones(1, 2))
    y, small = rows * 2.0 ** (-8 * group.rank()), x * 2.0 ** -10
    for bias, want in ((None, 1), (small, 1 + 2**-7), ((small, -small), 1), ((small, small), 1 + 2**-7)):
        mine = bias if group.rank() == 0 else None  # each rank has its own
        assert (buffer.combine(y, handle, bias=mine)[0] == (want if group.rank() == 0 else 1)).all(), (bias, want)
    buffer.destroy()


def test_a_sum_with_biases_is_rounded_once(ranks):
    ranks.run(2, rounds_once, device="none")


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


def without_rows(group):
    """All tokens go to the experts of one rank, and some ranks have none."""
    size, rank = group.size(), group.rank()
    buffer = deep_ep.Buffer(group, low_latency_mode=True, explicitly_destroy=True)
    for number in range(16):
        to, n = number % size, 0 if number >> rank & 1 else 5
        codes, bias = number % 2 == 1, torch.ones((n, HIDDEN), dtype=torch.bfloat16) if number % 3 else None
        x = torch.full((n, HIDDEN), 2.0, dtype=torch.bfloat16)
        ids = torch.full((n, TOP_K), to * PER_RANK, dtype=torch.int64)
        weights = torch.full((n, TOP_K), 0.5)
        per_rank, _, per_expert, there, _ = buffer.get_dispatch_layout(ids, PER_RANK * size)
        recv_x, recv_ids, recv_weights, counts, handle, _ = buffer.dispatch(
            to_e4m3(x) if codes else x, num_tokens_per_rank=per_rank, is_token_in_rank=there,
            num_tokens_per_expert=per_expert, topk_idx=ids, topk_weights=weights)
        came = sum(5 for r in range(size) if not number >> r & 1) if rank == to else 0
        assert len(recv_ids) == came and counts == [came] + [0] * (PER_RANK - 1)
        y = from_e4m3(*recv_x) if codes else recv_x
        assert y.shape == (came, HIDDEN)
        twice = buffer.dispatch(to_e4m3(x) if codes else x, handle=handle)[0]
        assert len(twice[0] if codes else twice) == came
        out, back, _ = buffer.combine(y, handle, topk_weights=recv_weights, bias=bias)
        want = x if bias is None else x + 1
        assert torch.allclose(out.float(), want.float(), atol=0.05) and back.shape == weights.shape
        recv, count, handle, _, hook = buffer.low_latency_dispatch(x, ids[:, :1].contiguous(), TOKENS, PER_RANK * size,
                                                                   use_fp8=False, return_recv_hook=True)
        hook()
        assert count.tolist() == [came] + [0] * (PER_RANK - 1)
        out, _, hook = buffer.low_latency_combine(recv, ids[:, :1].contiguous(), weights[:, :1].contiguous(), handle,
                                                  return_recv_hook=True)
        hook()
        assert torch.equal(out, x / 2)
    buffer.destroy()


@pytest.mark.parametrize("world", [1, 3])
def test_ranks_without_tokens_or_rows(ranks, world):
    ranks.run(world, without_rows, device="none")


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
        assert torch.equal(out, expected_sum(rank, range(size), number, experts).to(torch.bfloat16)) and back is None
        assert event.event is None
    for number in range(6):
        expanded(buffer, number, (True, False)[number % 2], (1, 4)[number // 2 % 2], number >= 3)
    with pytest.raises(ValueError, match="do_zero_padding is True"):
        buffer.dispatch(x, ids, weights, num_experts=experts, do_zero_padding=True)
    with pytest.raises(ValueError, match="do_expand is True: the dispatch of the handle had False"):
        buffer.dispatch(x, handle=handle, do_expand=True)
    buffer.barrier()
    buffer.destroy()


def expanded(buffer, number, looks, alignment, codes):
    """A row for each expert of a token. What fills up is zeros."""
    rank, size, experts = buffer.rank_idx, buffer.num_ranks, PER_RANK * buffer.num_ranks
    x, ids, weights = inputs(rank, number, experts)
    sent = to_e4m3(x) if codes else x
    layout = {"do_expand": True, "do_zero_padding": True, "use_tma_aligned_col_major_sf": True}
    recv_x, none, recv_weights, handle, event = buffer.dispatch(
        sent, ids, weights, num_experts=experts, expert_alignment=alignment, do_cpu_sync=looks,
        async_with_compute_stream=True, **layout)
    event.current_stream_wait()
    assert none is None and handle.do_expand and len(recv_weights) == handle.num_expanded_tokens
    if codes:
        stride = recv_x[1].stride()
        assert stride[0] == 1 and stride[1] % 4 == 0
    rows, local, of_rows = expected(rank, range(size), number, experts)
    again, _, again_weights, _, _ = buffer.dispatch(sent, topk_weights=weights, handle=handle, **layout)
    got, twice = (from_e4m3(*part) if codes else part for part in (recv_x, again))
    want = from_e4m3(*to_e4m3(rows)) if codes else rows
    y, end, counts = torch.full(got.shape, float("nan"), dtype=torch.bfloat16), 0, []
    slots = torch.full(local.shape, -1)
    for e in range(PER_RANK):
        begin, entries = -(-end // alignment) * alignment, (local == e).nonzero()
        assert not got[end:begin].any() and not recv_weights[end:begin].any()
        end = begin + len(entries)
        counts.append(len(entries))
        slots[entries[:, 0], entries[:, 1]] = torch.arange(begin, end)
        assert torch.equal(got[begin:end], want[entries[:, 0]]) and torch.equal(twice[begin:end], got[begin:end])
        assert torch.equal(recv_weights[begin:end], of_rows[entries[:, 0], entries[:, 1]])
        assert torch.equal(again_weights[begin:end], recv_weights[begin:end])
        y[begin:end] = (result(rank * PER_RANK + e, got[begin:end]).float() * recv_weights[begin:end, None]).bfloat16()
        assert handle.psum_num_recv_tokens_per_expert[e] == end
    assert handle.num_unaligned_recv_tokens_per_expert.tolist() == counts
    assert handle.num_recv_tokens_per_expert_list == [-(-c // alignment) * alignment for c in counts] * bool(looks)
    assert not looks or len(got) == -(-end // alignment) * alignment
    places, source = handle.recv_src_metadata[:len(rows)], 0
    assert torch.equal(places[:, 2:], slots.int())
    for source in range(size):
        theirs = inputs(source, number, experts)[0]
        here = places[:, 0] // TOKENS == source
        assert torch.equal(rows[here], theirs[(places[here, 0] % TOKENS).long()])
    assert torch.equal(places[:, 1] % TOP_K, (local >= 0).int().argmax(1).int())
    out, back, _ = buffer.combine(y, handle, topk_weights=recv_weights)
    wanted = expected_sum(rank, range(size), number, experts).to(torch.bfloat16)
    assert torch.allclose(out.float(), wanted.float(), atol=0.05 * max(1, float(wanted.abs().max() if len(x) else 1))) \
        if codes else torch.equal(out, wanted)
    assert torch.equal(back, torch.where(ids >= 0, weights, 0))


def test_elastic_buffer(ranks):
    ranks.run(2, elastic, device="none")


def by_gloo(rank, path, store):
    os.environ["COVEY_STORE"] = store
    dist.init_process_group("gloo", store=dist.FileStore(path, 2), rank=rank, world_size=2)
    low_latency(dist.group.WORLD)
    dist.destroy_process_group()


def test_over_a_group_of_another_backend(children, store, tmp_path):
    for rank in range(2):
        children.spawn(rank, by_gloo, str(tmp_path / "store"), store)
    children.results(2)


def test_what_waits_for_an_event_alone_is_made_on_the_stream_of_the_buffer(monkeypatch):
    told, own, current = [], object(), object()

    @contextlib.contextmanager
    def on(stream):
        told.append(("on", stream))
        yield
        told.append(("off", stream))

    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: current)
    monkeypatch.setattr(torch.cuda, "stream", on)
    calls = Calls(0, 2)
    calls._own_stream = own
    previous = types.SimpleNamespace(before=lambda stream: told.append(("waits", stream)))
    tensor = types.SimpleNamespace(device=torch.device("cuda"), record_stream=lambda stream: told.append(("used", stream)))
    with calls.beside(tensor, True, previous) as give:
        give(tensor, None)
    assert told == [("waits", own), ("on", own), ("used", current), ("off", own)]

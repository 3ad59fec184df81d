# SPDX-License-Identifier: Apache-2.0
"""covey.ep.Buffer, in NIXL EP's shape: every step against plain arithmetic; ranks die, are replaced, and are added."""

import gc
import time

import pytest
import torch
from ep_steps import CAPACITY, HIDDEN, PER_RANK, TOKENS, TOP_K, inputs, masked, step
from test_ep_deep_ep import normal_step


def made(store, rank, world, **options):
    """A buffer, as vLLM makes it."""
    from covey.ep import Buffer

    buffer = Buffer(rank=rank, tcp_store_group=store, explicitly_destroy=True, **options)
    hint = Buffer.get_rdma_size_hint(num_max_dispatch_tokens_per_rank=TOKENS, hidden=HIDDEN, num_ranks=CAPACITY,
                                     num_experts=CAPACITY * PER_RANK)
    buffer.update_memory_buffers(num_ranks=CAPACITY, num_experts_per_rank=PER_RANK, num_rdma_bytes=hint)
    buffer.connect_ranks(list(range(world)))
    return buffer


def all_ways(store, rank, world):
    buffer = made(store, rank, world)
    number = 0
    for use_fp8 in (False, True, False, True):
        for ids_dtype in (torch.int32, torch.int64):
            for how in ("plain", "hook", "event"):
                absent = list(range(world, CAPACITY))
                assert step(buffer, number, use_fp8, ids_dtype, how) == (absent, absent)
                number += 1
    x, ids, _ = inputs(rank, number, world * PER_RANK)
    buffer.dispatch(x, ids, TOKENS, return_recv_hook=True)  # nobody calls the hook: the barrier receives first
    buffer.barrier()
    scratch = buffer.get_local_buffer_tensor(torch.int8, use_rdma_buffer=True)
    scratch.zero_()
    assert buffer.get_local_buffer_tensor(torch.float32, torch.Size((3, 100000)), 5).shape == (3, 100000)
    assert step(buffer, number) == (absent, absent)
    assert buffer.group_size == CAPACITY
    buffer.dispatch(x, ids, TOKENS, return_recv_hook=True)
    buffer.destroy()
    assert buffer.runtime is None


@pytest.mark.parametrize("world", [1, 3])
def test_every_way_of_a_step(processes, world):
    processes.run(world, all_ways, world)


def dropped(store, rank):
    """Rank 0 drops its buffer, as users of DeepEP do. Returns what rank 1 hears."""
    buffer = made(store, rank, 2)
    buffer.barrier()
    if rank == 0:
        del buffer
        gc.collect()
        return []
    causes = []
    while not causes:
        causes = [event.cause for event in buffer.calls.group.events() if 0 in event.left]
        time.sleep(0.01)
    buffer.destroy()
    return causes


def test_a_buffer_that_is_dropped_leaves(processes):
    assert processes.run(2, dropped) == [[], ["rank 0 is out"]]


def loses_one(store, rank, world, place, how, use_fp8):
    """(masks behind dispatch and combine, mask behind a barrier) of each step."""
    buffer = made(store, rank, world)
    masks = []
    for number in range(6):
        own = step(buffer, number, use_fp8, how=how, dies=place if (rank, number) == (1, 3) else None)
        buffer.barrier()
        masks.append((own, masked(buffer)))
    buffer.destroy()
    return masks


@pytest.mark.parametrize("place, how, use_fp8", [("before", "plain", False), ("sent", "hook", True),
                                                 ("between", "hook", False), ("between", "event", True)])
def test_survivors_share_the_mask(processes, place, how, use_fp8):
    first, dead, third = processes.run(3, loses_one, 3, place, how, use_fp8, killed=[1])
    assert dead is None
    whole, less = [3, 4, 5], [1, 3, 4, 5]
    for masks in (first, third):  # others may learn of step 3's death in the calls of step 2 that the dead had ended
        assert masks[:2] == [((whole, whole), whole)] * 2 and masks[3][1] == less and masks[3][0][1] == less
        assert masks[4:] == [((less, less), less)] * 2
    assert [behind for _, behind in first] == [behind for _, behind in third]
    calls = [[mask for own, _ in masks for mask in own] for masks in (first, third)]
    assert sum(a != b for a, b in zip(*calls)) <= 1  # the call in which it died


def agreed(buffer, number):
    """The step of the members, for a newcomer."""
    told = torch.tensor([number], dtype=torch.int64)
    buffer.calls.group.allreduce(told, op="max")
    return int(told)


def is_replaced(store, rank, comes):
    """Rank 0 dies in step 2. The others work, with a safe point before each step, until a replacement is in."""
    buffer = made(store, rank, 3)
    number, more = 0, 3
    if comes:
        buffer.admit()
        number = agreed(buffer, -1)
        assert masked(buffer) == [3, 4, 5]
    while more:
        use_fp8 = number % 2 == 1
        last = step(buffer, number, use_fp8, dies="between" if (rank, number, comes) == (0, 2, False) else None)
        number += 1
        if comes or number > 2:
            if last[1] == [3, 4, 5] and (comes or number > 3):
                more -= 1
            if more:
                buffer.admit()
                number = agreed(buffer, number)
    assert step(buffer, number) == ([3, 4, 5],) * 2
    buffer.destroy()
    return number


def test_a_replacement_comes_in_at_a_safe_point(processes):
    for rank in range(3):
        processes.start(rank, is_replaced, False)
    assert processes.result(0, killed=True) is None
    processes.start(0, is_replaced, True)
    numbers = processes.results(3)
    assert numbers[0] == numbers[1] == numbers[2]


def grows(store, rank, comes, staged):
    """As vLLM scales: ranks 2 and 3 connect while 0 and 1 work, and are unmasked when all are ready."""
    buffer = made(store, rank, 4 if comes else 2)
    if not comes:
        for number in range(4):
            step(buffer, number, use_fp8=number % 2 == 1)
        if staged:
            buffer.connect_ranks([2, 3], activate=False)
            while not {2, 3} <= buffer.calls.group.view().pending:  # the engine has work meanwhile
                time.sleep(0.01)
            assert step(buffer, 4) == ([2, 3, 4, 5],) * 2
            for new in (2, 3):
                buffer.update_mask_buffer(new, mask=False)
        else:
            buffer.connect_ranks([2, 3])
        assert masked(buffer) == [4, 5]
    for number in range(5, 9):
        assert step(buffer, number, use_fp8=number % 2 == 1, size=4) == ([4, 5],) * 2
    if rank >= 2:
        buffer.barrier()
        return  # and dies
    buffer.barrier()
    buffer.disconnect_ranks([2, 3])
    assert step(buffer, 9)[1] == [2, 3, 4, 5]
    buffer.clean_mask_buffer()
    assert step(buffer, 10) == ([2, 3, 4, 5],) * 2
    buffer.destroy()


@pytest.mark.parametrize("staged", [True, False])
def test_new_ranks_connect_and_leave(processes, staged):
    for rank in range(4):
        processes.start(rank, grows, rank >= 2, staged)
    processes.results(4)


def masks_by_hand(store, rank):
    buffer = made(store, rank, 3)
    assert step(buffer, 0) == ([3, 4, 5],) * 2
    if rank != 2:
        buffer.update_mask_buffer(2, True)
    assert 2 in masked(buffer) or rank == 2
    first = step(buffer, 1)
    buffer.clean_mask_buffer()
    buffer.barrier()
    assert step(buffer, 2) == ([3, 4, 5],) * 2
    buffer.destroy()
    return first


def test_ranks_are_masked_by_hand(processes):
    first, second, third = processes.run(3, masks_by_hand)
    assert first == second == ([2, 3, 4, 5],) * 2
    assert third == ([0, 1, 3, 4, 5],) * 2


class Normal:
    """A buffer by the names of DeepEP's normal mode, for normal_step()."""

    def __init__(self, buffer):
        self.buffer, self.rank = buffer, buffer.rank
        self.dispatch, self.combine = buffer.ht_dispatch, buffer.ht_combine
        self.get_dispatch_layout, self.capture = buffer.get_dispatch_layout, buffer.capture
        self.get_dispatch_config, self.get_combine_config = buffer.get_dispatch_config, buffer.get_combine_config

    def low_latency_query_mask_buffer(self, status):
        all_ranks = torch.zeros(self.buffer.group_size, dtype=torch.int32)
        self.buffer.query_mask_buffer(all_ranks)
        status.copy_(all_ranks[: len(status)])


def in_normal_mode(store, rank):
    buffer = made(store, rank, 2, low_latency_mode=False)
    normal = Normal(buffer)
    for number in range(4):
        normal_step(normal, number, 2, ("plain", "event")[number % 2], codes=number >= 2)
        assert step(buffer, number) == ([2, 3, 4, 5],) * 2  # both modes on one buffer
    with pytest.raises(ValueError, match="num_experts is 8: it must be 4, 2 for each of the 2 ranks"):
        buffer.get_dispatch_layout(torch.zeros(1, TOP_K, dtype=torch.int64), 8)
    buffer.destroy()


def test_normal_mode_by_the_names_of_nixl(processes):
    processes.run(2, in_normal_mode)


def refuses(store, rank):
    from covey.ep import Buffer

    with pytest.raises(TypeError, match="Buffer.*nvlink_backend='ipc'"):
        Buffer(rank=0, nvlink_backend="ipc", enable_shrink=False)
    with pytest.raises(RuntimeError, match="update_memory_buffers"):
        Buffer(rank=0).connect_ranks([0])
    buffer = made(store, rank, 1, nvlink_backend=None)
    x, weights = torch.ones(2, HIDDEN, dtype=torch.bfloat16), torch.ones(2, TOP_K)
    ids = torch.zeros(2, TOP_K, dtype=torch.int64)
    with pytest.raises(ValueError, match="use_ue8m0.*round_scale=False"):
        buffer.dispatch(x, ids, TOKENS, use_ue8m0=True)
    with pytest.raises(ValueError, match="use_ue8m0.*256 elements.*multiple of 512"):
        buffer.dispatch(x[:, :256].contiguous(), ids, TOKENS, round_scale=True, use_ue8m0=True)
    with pytest.raises(ValueError, match="num_experts is 3"):
        buffer.dispatch(x, ids, TOKENS, 3)
    with pytest.raises(ValueError, match="2 tokens.*at most 1"):
        buffer.dispatch(x, ids, 1)
    with pytest.raises(TypeError, match="topk_idx is torch.float32"):
        buffer.dispatch(x, weights, TOKENS)
    with pytest.raises(ValueError, match="not contiguous"):
        buffer.dispatch(x.t().contiguous().t(), ids, TOKENS)
    with pytest.raises(ValueError, match="beyond the capacity"):
        buffer.connect_ranks([CAPACITY])
    with pytest.raises(ValueError, match="mask_status"):
        buffer.query_mask_buffer(torch.zeros(2, dtype=torch.int32))
    _, _, handle, _, _ = buffer.dispatch(x, ids, TOKENS, use_fp8=False, use_nvfp4=False, x_global_scale=None)
    with pytest.raises(TypeError, match="handle is tuple"):
        buffer.combine(x, ids, weights, (1, 2))
    with pytest.raises(ValueError, match="x is.*it must be contiguous"):  # its parts are as good
        buffer.combine(x, ids, weights, tuple(handle))
    with pytest.raises(TypeError, match="use_logfmt=True"):
        buffer.combine(x, ids, weights, handle, use_logfmt=True)
    with pytest.raises(ValueError, match="x is .*as what the dispatch gave"):
        buffer.combine(x, ids, weights, handle)
    buffer.destroy()


def test_what_is_wrong_is_named(processes):
    processes.run(1, refuses)


def refuses_more(store, rank):
    """Calls that would read memory that is not theirs, and those whose errors named another cause."""
    from covey.ep import Buffer

    for arguments, why in (((0, 1, 0), "num_ranks is 0: it must be from 1 to 4096"), ((5000, 1, 0), "num_ranks is 5000"),
                           ((1, 1.5, 0), "num_experts_per_rank is 1.5: it must be a whole number")):
        with pytest.raises((TypeError, ValueError), match=why):
            Buffer(rank=0).update_memory_buffers(*arguments)
    with pytest.raises(TypeError, match="rank is '0': it must be a whole number"):
        Buffer(rank="0").update_memory_buffers(2, 1, 0)
    x, weights = torch.ones(2, HIDDEN, dtype=torch.bfloat16), torch.ones(2, TOP_K)
    ids = torch.zeros(2, TOP_K, dtype=torch.int64)
    with pytest.raises(RuntimeError, match="no memory yet"):
        Buffer(rank=0).dispatch(x, ids, TOKENS, 4)
    buffer = made(store, rank, 1)
    most = CAPACITY * PER_RANK
    wrong = [(dict(x=x.to(torch.float8_e4m3fn)), TypeError, "x is torch.float8_e4m3fn"),
             (dict(x=x.to("meta")), TypeError, "x is on meta: it must be on the host or on a CUDA device"),
             (dict(topk_idx=ids.to("meta")), ValueError, "topk_idx is on meta, but x is on cpu"),
             (dict(num_max_dispatch_tokens_per_rank=2**40), ValueError, f"num_max_dispatch_tokens_per_rank is {2**40}"),
             (dict(num_max_dispatch_tokens_per_rank=None), TypeError, "rank is None: it must be a whole number"),
             (dict(num_experts=-PER_RANK), ValueError, f"at most {most}"),
             (dict(num_experts=most + PER_RANK), ValueError, f"at most {most}"),
             (dict(cumulative_local_expert_recv_stats=[0]), TypeError, "recv_stats is list"),
             (dict(dispatch_wait_recv_cost_stats=[0]), TypeError, "cost_stats is list")]
    right = dict(x=x, topk_idx=ids, num_max_dispatch_tokens_per_rank=TOKENS, use_fp8=False)
    for change, kind, why in wrong:
        with pytest.raises(kind, match=why):
            buffer.dispatch(**{**right, **change})
    recv_x, _, handle, _, _ = buffer.dispatch(**right)
    right = dict(x=recv_x, topk_idx=ids, topk_weights=weights, handle=handle)
    wrong = [(dict(topk_idx=ids[:1], topk_weights=weights[:1]), ValueError, rf"topk_idx is \(1, {TOP_K}\)"),
             (dict(topk_idx=ids.repeat(2, 1), topk_weights=weights.repeat(2, 1)), ValueError, rf"topk_idx is \(4, {TOP_K}\)"),
             (dict(x=None), TypeError, "x is NoneType"),
             (dict(out=x.to("meta")), ValueError, "out is on meta")]
    for change, kind, why in wrong:
        with pytest.raises(kind, match=why):
            buffer.combine(**{**right, **change})
    for call, kind, why in ((lambda: buffer.connect_ranks(1), TypeError, "remote_ranks is 1: it must be a list"),
                            (lambda: buffer.disconnect_ranks([CAPACITY]), ValueError, "beyond the capacity"),
                            (lambda: buffer.update_mask_buffer("1", True), TypeError, "rank_to_mask is '1'"),
                            (lambda: buffer.query_mask_buffer([0]), TypeError, "mask_status is list"),
                            (lambda: buffer.get_next_combine_buffer(3), TypeError, "handle is int"),
                            (lambda: buffer.get_local_buffer_tensor(torch.int8, (2,), -1), ValueError, "offset is -1")):
        with pytest.raises(kind, match=why):
            call()
    assert buffer.get_local_buffer_tensor(torch.int8, (2, 3)).shape == (2, 3)
    assert torch.equal(buffer.combine(**right)[0], TOP_K * x)  # nothing has changed
    buffer.destroy()
    for call in (lambda: buffer.dispatch(x, ids, TOKENS), lambda: buffer.combine(**right), buffer.barrier,
                 lambda: buffer.connect_ranks([0]), lambda: buffer.update_memory_buffers(CAPACITY, PER_RANK, 0)):
        with pytest.raises(RuntimeError, match="the buffer is destroyed"):
            call()


def test_more_that_is_wrong(processes):
    processes.run(1, refuses_more)


def differs(store, rank, change):
    """Ranks that call with other numbers: both get an error that names them."""
    import covey

    buffer = made(store, rank, 2)
    x, ids = torch.ones(2, HIDDEN, dtype=torch.bfloat16), torch.zeros(2, TOP_K, dtype=torch.int64)
    arguments = dict(x=x, topk_idx=ids, num_max_dispatch_tokens_per_rank=TOKENS, use_fp8=False)
    if rank == 1 and change == "hidden":
        arguments["x"] = torch.ones(2, 2 * HIDDEN, dtype=torch.bfloat16)
    elif rank == 1 and change == "tokens":
        arguments["num_max_dispatch_tokens_per_rank"] = TOKENS + 1
    elif rank == 1:
        arguments["use_fp8"] = True
    with pytest.raises(covey.errors.MismatchError) as refused:
        for _ in range(2):  # the rank that is ahead learns of it in its next call
            buffer.dispatch(**arguments)
    store.set(f"told{rank}", "")
    store.wait([f"told{1 - rank}"])  # a rank that ended at once would be told to the other as dead instead
    return str(refused.value)


@pytest.mark.parametrize("change", ["hidden", "tokens", "fp8"])
def test_ranks_that_differ_are_told(processes, change):
    for text in processes.run(2, differs, change):
        assert "rank 0" in text and "rank 1" in text and "dispatch" in text, text

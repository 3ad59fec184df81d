# SPDX-License-Identifier: Apache-2.0
"""Ranks die: all survivors raise alike, or go on; replacements and new ranks come in."""

import itertools
import os
import time
from datetime import timedelta
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist
from children import die, tell, told
from conftest import mooncake_group

import covey.torch
from covey.compat import mooncake
from covey.torch import ProcessGroup, _process_group


def fails(group):
    for step in range(1000):
        if step == 1 and group.rank() == 1:  # the others may not have all of the operation before
            die()
        x = torch.ones(100)
        try:
            dist.all_reduce(x)
        except RuntimeError as error:  # as torch's users catch it
            assert error.rank == 1 and "rank 1" in str(error), error
            break
    with pytest.raises(covey.errors.PeerError):
        dist.barrier()
    covey.torch.admit()  # acknowledges it
    x = torch.ones(100)
    dist.all_reduce(x)
    return step, x[0].item()


def test_all_survivors_raise_alike(ranks):
    answers = ranks.run(3, fails, killed=[1], device="none")
    assert answers[0] == answers[2] and answers[0][1] == 2


def dropped(group):
    part = group.split_group([0, 1], timeout=timedelta(seconds=60))
    part.allreduce([torch.ones(2)]).get_future().wait()
    dist.barrier()
    if group.rank() == 0:
        del part
    else:
        with pytest.raises(covey.errors.PeerError):
            part.allreduce([torch.ones(2)]).wait()
    dist.barrier()
    return [event.cause for event in part.covey.events() if "dead" in event.cause] if group.rank() else []


def test_a_group_without_references_leaves(ranks):
    assert ranks.run(2, dropped, device="none") == [[], []]


def test_leave_and_callbacks_have_one_bound(monkeypatch):
    """Of a process group without references: no rank answers, and no callback ends."""
    now, bounds = [0.0], []

    def in_vain(seconds):
        bounds.append(seconds)
        now[0] += seconds
        raise covey.errors.TimeoutError(-3, "nobody answers")

    monkeypatch.setattr(_process_group, "time", SimpleNamespace(monotonic=lambda: now[0]))
    group = SimpleNamespace(_inside={}, leave=in_vain, close=lambda: None)
    ProcessGroup._depart(SimpleNamespace(covey=group, _flush=lambda: None, _finisher=SimpleNamespace(end=bounds.append)), 1)
    assert bounds == [1, 0]


def goes_on(group):
    means = []
    for step in range(20):
        if group.rank() == 2 and step == 10:
            die()
        x = torch.full((10,), float(group.rank()))
        work = dist.all_reduce(x, dist.ReduceOp.AVG, async_op=True)
        work.wait()
        assert x[0].item() == sum(work.ranks) / len(work.ranks)
        means.append((sorted(work.ranks), x[0].item()))
    return means


def test_survivors_go_on(ranks):
    answers = ranks.run(3, goes_on, killed=[2], device="none", on_loss="continue")
    assert answers[0] == answers[1] and answers[0][0][1] == 1 and answers[0][-1] == ([0, 1], 0.5)


def model_of(seed):
    torch.manual_seed(seed)
    return torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 1))


def train(group, steps, dies, joins, folder):
    """Averages over who is there. One rank dies in the middle of backward; its replacement comes in with the state."""
    net = model_of(0 if not joins else group.rank() + 100)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)
    for p in net.parameters():
        optimizer.state[p]["momentum_buffer"] = torch.zeros_like(p)
    step = torch.zeros(1, dtype=torch.int64)
    state = [*net.parameters(), *(optimizer.state[p]["momentum_buffer"] for p in net.parameters()), step]
    contributors = []
    while step.item() < steps:
        with torch.no_grad():
            outcome = covey.torch.admit(state)
        if os.path.exists(os.path.join(folder, "gone")) and len(outcome.ranks) < 3:
            time.sleep(0.01)  # the test gives the replacement time to come before the last step
            step -= 1 if step.item() == steps - 1 else 0
        torch.manual_seed(1000 * group.rank() + step.item())
        loss = net(torch.randn(4, 8)).square().mean()
        handles = []

        def reduce(p):
            if dies and step.item() == 5 and len(handles) == 2:
                open(os.path.join(folder, "gone"), "w").close()
                die()
            handles.append(dist.all_reduce(p.grad, dist.ReduceOp.AVG, async_op=True))

        hooks = [p.register_post_accumulate_grad_hook(reduce) for p in net.parameters()]
        loss.backward()
        for handle in handles:
            handle.wait()
        for hook in hooks:
            hook.remove()
        optimizer.step()
        optimizer.zero_grad()
        step += 1
        contributors.append(len(handles[0].ranks))
    return contributors, [p.detach().numpy().tobytes() for p in net.parameters()]


def test_a_training_loop_takes_a_replacement_in(ranks, tmp_path):
    for rank in range(3):
        ranks.start(rank, 3, train, 200, rank == 1, False, str(tmp_path), device="none", on_loss="continue")
    assert ranks.result(1, killed=True) is None
    ranks.start(1, 3, train, 200, False, True, str(tmp_path), device="none", on_loss="continue", is_extension=True)
    answers = ranks.results(3)
    assert answers[0][1] == answers[1][1] == answers[2][1]
    assert 2 in answers[0][0] and answers[0][0][0] == answers[0][0][-1] == 3


def grows(group):
    while len(covey.torch.admit().ranks) < 3:
        pass
    x = torch.ones(4)
    dist.all_reduce(x)
    return x[0].item(), dist.get_world_size(), group.active_ranks()[:4].tolist()


def test_a_new_rank_comes_in(ranks):
    for rank in range(2):
        ranks.start(rank, 2, grows, device="none", max_ranks=4)
    ranks.start(2, 3, grows, device="none", max_ranks=4, is_extension=True)
    assert ranks.results(3) == [(3.0, 3, [1, 1, 1, 0])] * 3


def ddp(group, hook):
    from torch.nn.parallel import DistributedDataParallel

    net = DistributedDataParallel(model_of(0))
    if hook:
        net.register_comm_hook(None, covey.torch.average_hook)
    for step in range(10):
        if group.rank() == 2 and step == 5:
            die()
        torch.manual_seed(step)
        net(torch.randn(4, 8)).square().mean().backward()
        with torch.no_grad():
            for p in net.parameters():
                p -= 0.01 * p.grad
                p.grad = None
    return [p.detach().numpy().tobytes() for p in net.parameters()]


def ddp_fails(group):
    from torch.nn.parallel import DistributedDataParallel

    net = DistributedDataParallel(model_of(0))
    with pytest.raises(RuntimeError, match="PEER.*rank 2"):
        for step in range(1000):
            if group.rank() == 2 and step == 5:
                die()
            net(torch.randn(4, 8)).square().mean().backward()
    with pytest.raises(covey.errors.PeerError):  # as itself
        covey.torch.check()
    covey.torch.admit()
    covey.torch.check()
    return step


def test_ddp_raises_alike(ranks):
    answers = ranks.run(3, ddp_fails, killed=[2], device="none")
    assert answers[0] == answers[1]


def inherits(group):
    some = dist.new_group([0, 1])
    return some.options.on_loss if group.rank() < 2 else "continue"


def test_other_groups_do_the_same(ranks):
    assert ranks.run(3, inherits, device="none", on_loss="continue") == ["continue"] * 3


def test_ddp_averages_over_survivors(ranks):
    answers = ranks.run(3, ddp, True, killed=[2], device="none", on_loss="continue")
    assert answers[0] == answers[1]


def aborted(group):
    if group.rank() == 1:
        return told()
    work = dist.all_reduce(torch.ones(4), async_op=True)
    time.sleep(0.2)
    group.abort()
    with pytest.raises(covey.errors.AbortedError):
        work.wait()


def test_abort_never_hangs(ranks):
    for rank in range(2):
        ranks.start(rank, 2, aborted, device="none")
    ranks.result(0)
    ranks.tell(1, "it has ended")
    ranks.result(1)


def as_mooncake(rank, path, store, recovered):
    active = torch.zeros(3, dtype=torch.int32)
    group = mooncake_group(rank, path, store, "mooncake", 3, active, recovered, 3)
    if recovered:
        mooncake.join_group(group)
    else:
        dist.all_reduce(torch.ones(4))
        if rank == 1:
            die()
        lost = False
        while not lost:  # once at least: it may have been lost from the first one
            work = dist.all_reduce(torch.ones(4), async_op=True)
            work.wait()
            lost = not active[1].item()
        assert mooncake.get_failed_ranks_hint(work).tolist() in ([0, 1, 0], [0, 0, 0])
        ready = torch.zeros(1)
        while not ready.item():  # as Mooncake's users: all agree that the peer is there
            ready = torch.tensor([float(mooncake.get_peer_state(group, [1])[0])])
            dist.all_reduce(ready, dist.ReduceOp.MIN)
        mooncake.recover_ranks(group, [1])
    x = torch.ones(4)
    dist.all_reduce(x)
    answer = x[0].item(), mooncake.get_active_ranks(group)[:3].tolist(), active.tolist()
    dist.destroy_process_group()
    return answer


def test_mooncakes_options():
    forms = ((4,), {}), ((4, True), {}), ((), {"max_group_size": 4}), ((torch.ones(4), False, 4), {}), ((4, False, False, False), {})
    made = [mooncake.MooncakeBackendOptions(*given, **named) for given, named in forms]
    assert [options.max_ranks for options in made] == [4] * 5
    assert [options.is_extension for options in made] == [False, True, False, False, False]
    assert [options.auto_deactivate_on_failure for options in made] == [True] * 4 + [False]
    assert made[0].active_ranks is None and len(made[3].active_ranks) == 4
    with pytest.raises(ValueError, match="needs auto_deactivate_on_failure"):
        mooncake.MooncakeBackendOptions(4, False, False, True)


def waits_in_vain(group):
    """The time of rank 0 is over, by a clock of its own. Rank 1, whose clock stands still, gives up with it."""
    seconds = itertools.count(step=100 if group.rank() == 0 else 0)
    mooncake.time = SimpleNamespace(monotonic=lambda: next(seconds))
    group.set_timeout(timedelta(seconds=300))
    with pytest.raises(TimeoutError, match=r"ranks \[2\] did not come"):
        mooncake.extend_group_size_to(group, 3)
    dist.all_reduce(x := torch.ones(1))
    return x.item()


def test_all_give_up_together(ranks):
    assert ranks.run(2, waits_in_vain, device="none", max_ranks=4) == [2.0, 2.0]


def test_mooncakes_names(children, store, tmp_path):
    path = str(tmp_path / "store")
    for rank in range(3):
        children.spawn(rank, as_mooncake, path, store, False)
    assert children.result(1, killed=True) is None
    children.spawn(1, as_mooncake, path, store, True)
    assert children.results(3) == [(3.0, [1, 1, 1], [1, 1, 1])] * 3


def with_a_dead_joiner(rank, path, store, joins):
    """Rank 1 dies. Its first replacement dies when it is connected, its second in recover_ranks(); the third comes in."""
    group = mooncake_group(rank, path, store, "dead-joiner", 3, is_extension=joins > 0)

    def agreed(state):
        word = torch.zeros(1)
        while not word.item():
            word = torch.tensor([float(mooncake.get_peer_state(group, [1]) == [state])])
            dist.all_reduce(word, dist.ReduceOp.MIN)

    if joins:
        tell("connected")
        assert told() == "go on"
        if joins < 3:
            die()
        mooncake.join_group(group)
    else:
        dist.all_reduce(torch.ones(1))
        if rank == 1:
            die()
        agreed(True)
        tell("seen")
        agreed(False)
        tell("lost")
        agreed(True)
        tell("seen")
        answer = mooncake.recover_ranks(group, [1])
        assert answer.status == mooncake.ProposalStatus.Rejected and "died before" in answer.reject_reason
        tell("lost")
        agreed(True)
        assert mooncake.recover_ranks(group, [1]).status == mooncake.ProposalStatus.Applied
    dist.all_reduce(x := torch.ones(1))
    dist.destroy_process_group()
    return x.item()


def test_a_joiner_dies_before_it_comes_in(children, store, tmp_path):
    path = str(tmp_path / "store")
    for rank in range(3):
        children.spawn(rank, with_a_dead_joiner, path, store, 0)
    assert children.result(1, killed=True) is None
    for joins in (1, 2, 3):
        children.spawn(1, with_a_dead_joiner, path, store, joins)
        children.hear(1, "connected")
        for rank in (0, 2) if joins < 3 else ():
            children.hear(rank, "seen")
        children.tell(1, "go on")
        for rank in (0, 2) if joins < 3 else ():
            children.hear(rank, "lost")
    assert children.results(3) == [3.0] * 3


def objects(group, dies_in, folder):
    """A rank dies before an object collective, or in it, between its two operations."""
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint.api import CheckpointException

    rank, gather = group.rank(), type(group).allgather
    dist.barrier()
    if rank == 2:
        def allgather(*arguments):
            if dies_in:
                gather(*arguments).wait()
            die()

        type(group).allgather = allgather
    dist.all_gather_object(everywhere := ["x"] * 3, rank)
    dist.gather_object(rank, here := ["x"] * 3 if rank == 0 else None, 0)
    with pytest.raises(CheckpointException):
        dcp.save({"a": torch.ones(1), f"of-{rank}": torch.ones(1)}, checkpoint_id=folder)
    return everywhere, here, os.path.exists(os.path.join(folder, ".metadata"))


@pytest.mark.parametrize("dies_in", [False, True])
def test_object_collectives_have_holes(ranks, dies_in, tmp_path):
    folder = str(tmp_path / "checkpoint")
    first, second, _ = ranks.run(3, objects, dies_in, folder, killed=(2,), device="none", on_loss="continue")
    assert first == ([0, 1, None], [0, 1, None], False) and second == ([0, 1, None], None, False)

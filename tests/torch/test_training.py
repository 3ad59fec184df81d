# SPDX-License-Identifier: Apache-2.0
"""What is built upon process groups: DDP, FSDP2, compiled functional collectives, checkpoints; the same as with gloo."""

import pytest
import torch
import torch.distributed as dist

WORLD = 2  # with two ranks a sum has one order, so losses are the same bit by bit


def model():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.GELU(), torch.nn.Linear(32, 4))


def losses(net, rank):
    optimizer = torch.optim.Adam(net.parameters(), lr=0.01)
    seen = []
    for step in range(6):
        torch.manual_seed(10 * step + rank)
        loss = net(torch.randn(8, 16)).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        seen.append(loss.item())
    return seen


def with_ddp(group):
    from torch.nn.parallel import DistributedDataParallel

    gloo = dist.new_group(backend="gloo")
    ours = losses(DistributedDataParallel(model(), process_group=group), group.rank())
    theirs = losses(DistributedDataParallel(model(), process_group=gloo), group.rank())
    assert ours == theirs
    return True


def with_fsdp(group):
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.fsdp import fully_shard

    gloo = dist.new_group(backend="gloo")
    found = []
    for pg in (group, gloo):
        mesh = DeviceMesh.from_group(pg, "cpu", mesh_dim_names=("dp",))
        net = model()
        for layer in (net[0], net[2]):
            fully_shard(layer, mesh=mesh)
        found.append(losses(fully_shard(net, mesh=mesh), group.rank()))
    assert found[0] == found[1]
    return True


def compiled(group):
    import torch.distributed._functional_collectives as functional

    def step(x):
        y = functional.all_reduce(x * 2, "sum", group)
        z = functional.all_gather_tensor(y + group.rank(), 0, group)
        return functional.reduce_scatter_tensor(z, "sum", 0, group)

    x = torch.arange(6, dtype=torch.float32)
    plain = step(x)
    again = torch.compile(step, backend="aot_eager", fullgraph=True)(x)
    want = WORLD * (2 * WORLD * x + group.rank())
    assert torch.equal(torch.as_tensor(plain), want) and torch.equal(torch.as_tensor(again), want)
    return True


def checkpoint(group, folder):
    import torch.distributed.checkpoint as dcp
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.fsdp import fully_shard

    mesh = DeviceMesh.from_group(group, "cpu", mesh_dim_names=("dp",))
    net, other = fully_shard(model(), mesh=mesh), fully_shard(model(), mesh=mesh)
    losses(net, group.rank())
    dcp.save({"net": net.state_dict()}, checkpoint_id=folder)
    state = {"net": other.state_dict()}
    dcp.load(state, checkpoint_id=folder)
    other.load_state_dict(state["net"])
    assert all(torch.equal(a.full_tensor(), b.full_tensor()) for a, b in zip(net.parameters(), other.parameters()))
    return True


def sharded(group):
    """A host without CUDA: torch takes the kind of device that a backend is registered for beside "cpu"."""
    from torch.distributed._shard import sharded_tensor
    from torch.distributed._shard.sharding_spec import ChunkShardingSpec

    tensor = sharded_tensor.ones(ChunkShardingSpec(0, [f"rank:{r}/cpu" for r in range(WORLD)]), 4, 2)
    out = torch.zeros(4, 2) if group.rank() == 0 else None
    tensor.gather(out=out)
    return out is None or bool((out == 1).all())


@pytest.mark.skipif(torch.cuda.is_available(), reason="a host without CUDA")
def test_sharded_tensors(ranks):
    assert ranks.run(WORLD, sharded, device="none") == [True] * WORLD


@pytest.mark.parametrize("function", [with_ddp, with_fsdp, compiled], ids=lambda f: f.__name__)
def test_training(ranks, function):
    assert ranks.run(WORLD, function, device="none") == [True] * WORLD


def test_checkpoints(ranks, tmp_path):
    assert ranks.run(WORLD, checkpoint, str(tmp_path), device="none") == [True] * WORLD

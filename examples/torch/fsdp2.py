# SPDX-License-Identifier: Apache-2.0
"""FSDP2 with a checkpoint: a rank that dies takes its shards along, so all go back to the last checkpoint.

    python -m covey.run -n 3 --restart=on-failure -- python examples/torch/fsdp2.py --folder /tmp/fsdp2

With on_loss="fail" (the default) the operation that lacks a rank raises the same error on all survivors. They wait at
admit() for the replacement, make the model anew as the replacement does, and load. No process but the dead one is
started again.
"""

import argparse
import hashlib
import os
import time
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard

import covey.torch

parser = argparse.ArgumentParser()
parser.add_argument("--folder", type=Path, required=True, help="of checkpoints, which all ranks see")
parser.add_argument("--steps", type=int, default=200)
parser.add_argument("--every", type=int, default=10, help="steps between two checkpoints")
arguments = parser.parse_args()

cuda = torch.cuda.is_available()
if cuda:
    torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")) % torch.cuda.device_count())
covey.torch.init_process_group()
rank, ranks = dist.get_rank(), int(os.environ["WORLD_SIZE"])
print(f"rank {rank} is process {os.getpid()}", flush=True)


def complete():
    """Waits for a member in each rank's place."""
    while len(covey.torch.admit().ranks) < ranks:
        time.sleep(0.01)


def build():
    """The model of the last checkpoint, its optimizer and its step: alike on members and newcomers."""
    torch.manual_seed(0)
    mesh = DeviceMesh.from_group(dist.group.WORLD, "cuda" if cuda else "cpu")
    net = torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.Tanh(), torch.nn.Linear(64, 1)).to(mesh.device_type)
    for layer in net:
        fully_shard(layer, mesh=mesh)
    fully_shard(net, mesh=mesh)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.001)
    done = sorted(int(path.parent.name) for path in arguments.folder.glob("*/.metadata"))
    if done:
        weights = net.state_dict()
        dcp.load({"net": weights}, checkpoint_id=arguments.folder / str(done[-1]))
        net.load_state_dict(weights)
    return net, optimizer, done[-1] if done else 0


def train():
    net, optimizer, step = build()
    if rank == 0:
        print(f"from step {step}", flush=True)
    while step < arguments.steps:
        torch.manual_seed(1000 * rank + step)
        x = torch.randn(16, 32, device="cuda" if cuda else "cpu")
        (net(x) - x.sum(1, keepdim=True)).square().mean().backward()
        covey.torch.check()  # on devices an error may come late: no step is taken with a lost rank
        optimizer.step()
        optimizer.zero_grad()
        step += 1
        if step % arguments.every == 0:
            dcp.save({"net": net.state_dict()}, checkpoint_id=arguments.folder / str(step))
    return b"".join(p.full_tensor().detach().cpu().numpy().tobytes() for p in net.parameters())


while True:
    complete()
    try:
        weights = train()
        break
    except (dist.DistBackendError, dcp.api.CheckpointException) as error:
        print(f"rank {rank}: {str(error).splitlines()[0]}", flush=True)
print(f"rank {rank} has parameters {hashlib.sha256(weights).hexdigest()[:16]}", flush=True)
dist.destroy_process_group()

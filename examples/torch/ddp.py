# SPDX-License-Identifier: Apache-2.0
"""DistributedDataParallel while ranks die, are replaced, come and go.

    python -m covey.run -n 3 -g ddp --restart=on-failure -- python examples/torch/ddp.py

and in other terminals, as often as you like:

    kill -9 PID                                                              # of a rank: it is replaced
    python -m covey.run --grow 1 -g ddp -- python examples/torch/ddp.py      # one rank more
    python -m covey.admin --group ddp retire 2                               # rank 2 ends its step and goes

A step is taken by the ranks that are there; gradients are averaged over these. admit() is the safe point: a newcomer
gets parameters, momentum and step there, and computes the next step with all others.
"""

import argparse
import hashlib
import os

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import covey.torch

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=100000)
parser.add_argument("--checkpoint", default="", help="a file, written each 20 steps")
arguments = parser.parse_args()

if torch.cuda.is_available():
    torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")) % torch.cuda.device_count())
covey.torch.init_process_group(on_loss="continue")
rank = dist.get_rank()
print(f"rank {rank} is process {os.getpid()}", flush=True)
device = f"cuda:{torch.cuda.current_device()}" if torch.cuda.is_available() else "cpu"

torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.Tanh(), torch.nn.Linear(64, 1)).to(device)
# DDP calls the same collectives on a newcomer as on a rank that was always there, if it does not broadcast what admit()
# gives (a model with buffers: forward_sync_buffers=False, too), and leaves out the order of buckets, which rank 0 tells
# in the first steps, by looking for unused parameters. So nobody wraps the model anew, and no rank is special.
net = DistributedDataParallel(model, init_sync=False, find_unused_parameters=True)
net.register_comm_hook(None, covey.torch.average_hook)  # over the contributors; DDP divides by the size of the group
optimizer = torch.optim.SGD(net.parameters(), lr=0.001, momentum=0.9)
for p in net.parameters():  # the optimizer makes them in its first step: too late for a newcomer
    optimizer.state[p]["momentum_buffer"] = torch.zeros_like(p)
step = torch.zeros(1, dtype=torch.int64, device=device)
state = [*(p.detach() for p in net.parameters()), *(s["momentum_buffer"] for s in optimizer.state.values()), step]


def digest():
    return hashlib.sha256(b"".join(t.cpu().numpy().tobytes() for t in state)).hexdigest()[:16]


before = set()
try:
    while step.item() < arguments.steps:
        outcome = covey.torch.admit(state)
        if before != set(outcome.ranks):
            before = set(outcome.ranks)
            print(f"rank {rank}: step {step.item()}, parameters {digest()}, ranks {sorted(before)}", flush=True)
        torch.manual_seed(1000 * rank + step.item())
        x = torch.randn(16, 32, device=device)
        loss = (net(x) - x.sum(1, keepdim=True)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        step += 1
        if arguments.checkpoint and rank == min(before) and step.item() % 20 == 0:
            torch.save({"model": model.state_dict(), "step": step.item()}, arguments.checkpoint + ".new")
            os.replace(arguments.checkpoint + ".new", arguments.checkpoint)
except RuntimeError as error:  # ClosedError; out of DDP's hook torch's own error, with the same text
    if "(CLOSED)" not in str(error):
        raise
    print(f"rank {rank} was retired after {step.item()} steps", flush=True)  # the others go on without it
    os._exit(0)

print(f"rank {rank} has parameters {digest()} after {step.item()} steps", flush=True)
dist.destroy_process_group()

# SPDX-License-Identifier: Apache-2.0
"""A training loop that loses a rank in the middle of backward, goes on, and takes a replacement in.

    python -m covey.run -n 3 --restart=on-failure -- python examples/torch/train.py

Gradients are averaged over the ranks that are there. admit() is the safe point: a newcomer gets parameters, momentum
and step of the others there. At the end all ranks have the same parameters, byte for byte.
"""

import hashlib
import os
import signal
import time

import torch
import torch.distributed as dist

import covey.torch

STEPS, RANKS = 200, int(os.environ.get("WORLD_SIZE", "1"))

if torch.cuda.is_available():
    torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")) % torch.cuda.device_count())
covey.torch.init_process_group(on_loss="continue")
device = f"cuda:{torch.cuda.current_device()}" if torch.cuda.is_available() else "cpu"
newcomer = os.environ.get("COVEY_CREATE") == "never"

torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.Tanh(), torch.nn.Linear(64, 1)).to(device)
momentum = [torch.zeros_like(p) for p in model.parameters()]
step = torch.zeros(1, dtype=torch.int64, device=device)
state = [*(p.detach() for p in model.parameters()), *momentum, step]


def backward(number):
    """Gradients are reduced as they come. Rank 1 is killed between the second and the third."""
    works = []

    def reduce(p):
        if number == 5 and dist.get_rank() == 1 and not newcomer and len(works) == 2:
            os.kill(os.getpid(), signal.SIGKILL)
        works.append(dist.all_reduce(p.grad, dist.ReduceOp.AVG, async_op=True))

    hooks = [p.register_post_accumulate_grad_hook(reduce) for p in model.parameters()]
    x = torch.randn(16, 32, device=device)
    (model(x) - x.sum(1, keepdim=True)).square().mean().backward()
    for work in works:
        work.wait()
    for hook in hooks:
        hook.remove()


contributors, longest = RANKS, 0.0
while step.item() < STEPS:
    admitted = covey.torch.admit(state)
    if step.item() >= STEPS - 1 and len(admitted.ranks) < RANKS:  # the last step is for all
        time.sleep(0.01)
        continue
    torch.manual_seed(1000 * dist.get_rank() + step.item())
    began = time.monotonic()
    backward(step.item())
    with torch.no_grad():
        for p, m in zip(model.parameters(), momentum):
            m.mul_(0.9).add_(p.grad)
            p.sub_(m, alpha=0.001)
            p.grad = None
    longest = max(longest, time.monotonic() - began)
    if len(admitted.ranks) != contributors and dist.get_rank() == 0:
        contributors = len(admitted.ranks)
        print(f"step {step.item()}: {contributors} ranks; the longest step until here took {1000 * longest:.0f} ms")
    step += 1

digest = hashlib.sha256(b"".join(p.detach().cpu().numpy().tobytes() for p in model.parameters())).hexdigest()[:16]
print(f"rank {dist.get_rank()} has parameters {digest} after {step.item()} steps")
dist.destroy_process_group()

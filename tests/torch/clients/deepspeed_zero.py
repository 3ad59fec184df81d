# SPDX-License-Identifier: Apache-2.0
"""ZeRO 1 of DeepSpeed over covey, on the host: `DS_ACCELERATOR=cpu torchrun --nproc-per-node 2 deepspeed_zero.py`."""

import torch
import torch.distributed as dist

import covey.torch  # noqa: F401
import deepspeed

deepspeed.init_distributed(dist_backend="covey", auto_mpi_discovery=False)
net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
config = {
    "train_micro_batch_size_per_gpu": 2,
    "optimizer": {"type": "SGD", "params": {"lr": 0.1}},
    "zero_optimization": {"stage": 1},
    "zero_allow_untested_optimizer": True,
}
engine, _, _, _ = deepspeed.initialize(model=net, model_parameters=net.parameters(), config=config)
for step in range(4):
    engine.backward(engine(torch.full((2, 4), float(dist.get_rank() + 1 + step))).square().mean())
    engine.step()
weight = next(engine.parameters()).detach().flatten()
weights = [torch.empty_like(weight) for _ in range(dist.get_world_size())]
dist.all_gather(weights, weight)
assert torch.equal(weights[0], weights[1])
print("fine", dist.get_backend())
dist.destroy_process_group()

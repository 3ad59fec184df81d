# SPDX-License-Identifier: Apache-2.0
"""Groups of Megatron-Core over covey, on the host: `torchrun --nproc-per-node 4 megatron_groups.py`.

Tensor and data parallel groups of two ranks each; a region's reduction and its gradient. Megatron's other regions make
their tensors on a CUDA device.
"""

import torch
import torch.distributed as dist

import covey.torch  # noqa: F401
from megatron.core import parallel_state
from megatron.core.tensor_parallel.mappings import reduce_from_tensor_model_parallel_region

dist.init_process_group("covey")
parallel_state.initialize_model_parallel(tensor_model_parallel_size=2, create_gloo_process_groups=False)
rank = dist.get_rank()
x = torch.full((2, 4), float(rank + 1), requires_grad=True)
y = reduce_from_tensor_model_parallel_region(x)
assert (y == (3 if rank < 2 else 7)).all(), y
y.sum().backward()
assert (x.grad == 1).all(), x.grad
sums = torch.full((3,), float(rank))
dist.all_reduce(sums, group=parallel_state.get_data_parallel_group())
assert (sums == (2 if rank % 2 == 0 else 4)).all(), sums
print("fine", dist.get_backend())
dist.destroy_process_group()

# SPDX-License-Identifier: Apache-2.0
"""vLLM's layer of experts over covey, on the host.

vLLM's own are the managers, what it makes for them (maybe_make_prepare_finalize), the modular kernel and the sums over
a token's experts. Ours are the experts, in torch, and what stands for groups, configuration, platform and kernels.
"""

import os
import sys
from types import SimpleNamespace as Names

import torch
import torch.distributed as dist
from dense import HIDDEN, INNER, PER_RANK, TOKENS, TOP_K, check, compute, floats, inputs, matrices, quantize
from on_host import use

import covey.aliases
import covey.torch

FUSED, COMM = "vllm.model_executor.layers.fused_moe", "vllm.distributed.device_communicators"
UTILS = "vllm.model_executor.layers.quantization.utils"

os.environ["EP_DISABLE_GIN"] = "1"
covey.aliases.install(["nixl_ep", "deep_ep"])
dist.init_process_group("covey", pg_options=covey.torch.Options(on_loss="continue"))
rank, world = dist.get_rank(), dist.get_world_size()
first = rank * PER_RANK
config = Names(parallel_config=Names(enable_elastic_ep=False, enable_fault_tolerance=True, data_parallel_size=world,
                                      elastic_ep_max_dp_size=world),
               model_config=Names(enforce_eager=False))
groups = {"get_dp_group": lambda: Names(rank_in_group=rank, world_size=world), "get_tp_group": lambda: None,
          "in_the_same_node_as": lambda group, source_rank: [True] * world}
context = Names(dp_metadata=Names(num_tokens_across_dp_cpu=torch.tensor([TOKENS] * world)))
use(sys.argv[1], ["vllm"], [
    f"{COMM}.all2all", f"{COMM}.base_device_communicator", "vllm.distributed.utils", "vllm.utils.math_utils",
    "vllm.v1.worker.ubatching", f"{UTILS}.quant_utils", *(f"{FUSED}.{name}" for name in (
        "activation", "all2all_utils", "config", "modular_kernel", "moe_output", "topk_weight_and_reduce", "utils",
        "prepare_finalize.nixl_ep", "prepare_finalize.deepep_ll", "prepare_finalize.deepep_ht",
        "prepare_finalize.deepep_v2")),
], {
    "vllm.config": {"get_current_vllm_config": lambda: config},
    "vllm.distributed.parallel_state": groups,
    "vllm.envs": {"VLLM_DEEPEP_BUFFER_SIZE_MB": 1},
    "vllm.forward_context": {"get_forward_context": lambda: context},
    "vllm.platforms": {"current_platform": Names(
        is_cuda_alike=lambda: True, is_cuda=lambda: False, is_rocm=lambda: False, is_xpu=lambda: False,
        is_cpu=lambda: True, fp8_dtype=lambda: torch.float8_e4m3fn, simple_compile_backend="eager")},
    "vllm.utils.import_utils": {f"has_{name}": (lambda: True) for name in ("deep_ep", "deep_ep_v2", "nixl_ep")},
    "vllm.utils.torch_utils": {"PIN_MEMORY": False},
    "vllm._custom_ops": {"moe_sum": lambda rows, out: out.copy_(rows.float().sum(1))},
    f"{UTILS}.fp8_utils": {"per_token_group_quant_fp8": lambda x, group, **_: quantize(x, group)},
})
import vllm.distributed.device_communicators.all2all as all2all
import vllm.model_executor.layers.fused_moe.modular_kernel as mk
import vllm.model_executor.layers.fused_moe.prepare_finalize.deepep_v2 as deepep_v2
from vllm.model_executor.layers.fused_moe import config as fused
from vllm.model_executor.layers.fused_moe.activation import MoEActivation
from vllm.model_executor.layers.fused_moe.all2all_utils import maybe_make_prepare_finalize
from vllm.model_executor.layers.fused_moe.topk_weight_and_reduce import TopKWeightAndReduceDelegate

MANAGERS = {"nixl_ep": all2all.NixlEPAll2AllManager, "deepep_low_latency": all2all.DeepEPLLAll2AllManager,
            "deepep_high_throughput": all2all.DeepEPHTAll2AllManager, "deepep_v2": all2all.DeepEPV2All2AllManager}
BATCHED = mk.FusedMoEActivationFormat.BatchedExperts


def global_ids(ids, ends, offset, count):
    """In place of a kernel of Triton."""
    real = torch.arange(len(ids))[:, None] < ends[-1]
    return torch.where((ids >= 0) & (ids + offset < count) & real, ids + offset, -1)


deepep_v2._globalize_recv_topk_idx = global_ids


class Experts(mk.FusedMoEExpertsModular):
    """In the format that vLLM's class for the buffer wants."""

    def __init__(self, kind, moe, quant, **more):
        self.activation_format = lambda: kind
        super().__init__(moe, quant, **more)

    def workspace_shapes(self, M, N, K, topk, all_experts, local, meta, activation):
        return (0,), (0,), (local, M, K) if self.activation_format() == BATCHED else (M, topk, K)

    def finalize_weight_and_reduce_impl(self):
        return TopKWeightAndReduceDelegate()

    def apply(self, output, hidden_states, w1, w2, topk_ids, expert_map, a1q_scale, expert_tokens_meta, **_):
        output.zero_()
        for e in range(PER_RANK):
            if self.activation_format() == BATCHED:
                rows = where = e, slice(int(expert_tokens_meta.expert_num_tokens[e]))
            else:
                where = ((topk_ids >= 0) & (expert_map[topk_ids] == e)).nonzero(as_tuple=True)
                rows = where[0]
            x = floats(hidden_states[rows], None if a1q_scale is None else a1q_scale[rows])
            output[where] = compute(x, w1[e], w2[e]).to(output.dtype)


Experts.__abstractmethods__ = frozenset()


class Layer:
    """vLLM's kernel of one layer, and the manager behind it."""

    def __init__(self, backend, fp8, manager=None):
        config.model_config.enforce_eager, backend = backend.endswith("_prefill"), backend.removesuffix("_prefill")
        self.manager = manager or MANAGERS[backend](dist.group.WORLD)
        self.fp8, size = fp8, self.manager.world_size
        self.experts = experts = size * PER_RANK
        sizes = {"tp_size": 1, "pcp_size": 1, "sp_size": 1, "dp_size": size, "ep_size": size}
        ranks = {"tp_rank": 0, "pcp_rank": 0, "dp_rank": rank, "ep_rank": rank}
        parallel = fused.FusedMoEParallelConfig(**sizes, **ranks, all2all_backend=backend, use_ep=True,
                                                enable_eplb=False)
        moe = fused.FusedMoEConfig(
            num_experts=experts, num_logical_experts=experts, num_local_experts=PER_RANK, experts_per_token=TOP_K,
            hidden_dim=HIDDEN, intermediate_size=INNER, max_num_tokens=TOKENS, activation=MoEActivation.SILU,
            routing_method=fused.RoutingMethodType.TopK, in_dtype=torch.bfloat16, device="cpu",
            moe_parallel_config=parallel)
        quant = fused.FusedMoEQuantConfig.make(*[torch.float8_e4m3fn] * fp8, block_shape=[128, 128] if fp8 else None)
        self.prepare = prepare = maybe_make_prepare_finalize(moe, quant, all2all_manager=self.manager)
        self.tells_faults = prepare.activation_format == BATCHED
        room = {"max_num_tokens": TOKENS, "num_dispatchers": prepare.num_dispatchers()} if self.tells_faults else {}
        self.kernel = mk.FusedMoEKernel(prepare, Experts(prepare.activation_format, moe, quant, **room))
        self.weights = [torch.stack(m) for m in zip(*map(matrices, range(first, first + PER_RANK)))]
        self.here = torch.arange(experts) - first
        self.here[(self.here < 0) | (self.here >= PER_RANK)] = -1

    def step(self, number, present):
        """Dispatch, experts, combine: the sum must be that of the experts of the ranks that are @present."""
        x, ids, weights = inputs(rank, number, self.experts)
        out = self.kernel.apply(x, *self.weights, weights, ids, MoEActivation.SILU, self.experts, self.here, False)
        check(out, x, ids, weights, self.fp8, present)

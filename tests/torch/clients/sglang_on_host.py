# SPDX-License-Identifier: Apache-2.0
"""SGLang's token dispatchers over covey, on the host.

SGLang's own are the dispatchers, elastic_ep and environ. Ours are the experts, in torch, and what stands for groups,
configuration and kernels.
"""

import os
import sys
from types import SimpleNamespace as Names

import torch
import torch.distributed as dist
from dense import HIDDEN, PER_RANK, TOKENS, TOP_K, check, compute, floats, inputs, matrices, quantize
from on_host import use

import covey.aliases

MOE = "sglang.srt.layers.moe"
for name in ("MOONCAKE_EP", "NIXL_EP", "DEEPEP", "DEEPEP_V2"):
    os.environ[f"SGLANG_{name}_NUM_MAX_DISPATCH_TOKENS_PER_RANK"] = str(TOKENS)
covey.aliases.install(["mooncake", "nixl_ep", "deep_ep"])
from mooncake.pg import MooncakeBackendOptions

rank, joins = int(os.environ["RANK"]), os.environ.pop("COVEY_CREATE", "") == "never"  # SGLang's launcher sets none
founders = int(os.environ["WORLD_SIZE"])
grows = rank >= founders  # started by --grow


def all_gather_object(value):
    values = [None] * dist.get_world_size()
    dist.all_gather_object(values, value)
    return values


parallel = Names(max_ep_size=None, ep_join_rank_offset=founders * grows, tp_size=1, attn_dp_size=founders,
                 elastic_ep_initial_size=founders,
                 world_group=Names(ranks=range(founders), all_gather_object=all_gather_object))
flags = Names(moe=Names(elastic_ep_backend="mooncake", moe_a2a_backend="mooncake", is_ep_joiner=joins,
                        ep_join_mode="scale" if grows else "recover", deepep_v2_mode="direct"))
coordinators, prefill = {}, [False]
use(sys.argv[1], ["sglang", "msgspec"], [
    "sglang.srt.environ", "sglang.srt.elastic_ep.elastic_ep", f"{MOE}.utils",
    *(f"{MOE}.token_dispatcher.{name}" for name in ("base", "deepep", "deepep_v2", "mooncake", "nixl")),
], {
    "sglang.kernels.ops.quantization.fp8_kernel": {
        "sglang_per_token_group_quant_fp8": lambda x, group, **_: quantize(x, group)},
    "sglang.srt.distributed.utils": {"get_global_tcp_store": lambda: dist.distributed_c10d._get_default_store()},
    "sglang.srt.distributed.parallel_state": {"_groups": coordinators},
    "sglang.srt.layers.deep_gemm_wrapper": {"ENABLE_JIT_DEEPGEMM": True, **dict.fromkeys((
        "DEEPGEMM_BLACKWELL", "DEEPGEMM_SCALE_UE8M0", "DEEPGEMM_NEED_TMA_ALIGNED_SCALES"), False)},
    "sglang.srt.layers.dp_attention": {"get_is_extend_in_batch": lambda: prefill[0]},
    "sglang.srt.runtime_context": {f"get_{name}": lambda value=value: value for name, value in (
        ("parallel", parallel), ("exec", flags), ("resources", Names(buffers={})), ("server_args", flags))},
    "sglang.srt.utils": {"get_int_env_var": lambda name, other=0: int(os.environ.get(name, other)),
                         "is_cpu": lambda: True, "get_cuda_version": lambda: (13, 0)},
})
from sglang.srt.elastic_ep import elastic_ep
from sglang.srt.layers.moe.token_dispatcher import deepep, deepep_v2, mooncake, nixl
from sglang.srt.layers.moe.utils import DeepEPMode

state = elastic_ep.ElasticEPStateManager
torch.cuda.get_device_properties = lambda device=None: Names(multi_processor_count=132)


def init(name, room=0):
    """The world, with @room for further ranks, and SGLang's state of it. Without room also the group of all ranks that
    SGLang makes at its launch, which is returned: a GroupCoordinator.
    """
    flags.moe.moe_a2a_backend = name
    parallel.max_world_size = parallel.max_ep_size = size = founders + room
    dist.init_process_group("mooncake-cpu", rank=rank, world_size=size if grows else founders,
                            pg_options=options(size)[1])
    state.init(None)
    if room:
        return None
    (active, on_device), (active_cpu, on_host) = options(size), options(size)
    tp = Names(unique_name="tp:0", ranks=list(range(size)), world_size=size, use_message_queue_broadcaster=False,
               active_ranks=active, active_ranks_cpu=active_cpu,
               device_group=dist.new_group(range(size), backend="mooncake-cpu", pg_options=on_device),
               cpu_group=dist.new_group(range(size), backend="mooncake-cpu", pg_options=on_host))
    coordinators["tp:0"] = lambda: tp
    return tp


def options(size):
    """A mask of active ranks that a group keeps true, and the group's options."""
    active = torch.ones(size, dtype=torch.int32)
    return active, MooncakeBackendOptions(active, joins, size)


def make(name, fp8, group=None):
    """A dispatcher of the ranks that are there."""
    experts = dist.get_world_size() * PER_RANK
    prefill[0] = name.endswith(("normal", "prefill"))
    flags.moe.moe_a2a_backend, flags.moe.deepep_dispatcher_output_dtype = name, "fp8" if fp8 else "bf16"
    os.environ["SGLANG_NIXL_EP_BF16_DISPATCH"] = str(int(not fp8))
    shape = {"group": group or dist.group.WORLD, "router_topk": TOP_K, "num_experts": experts,
             "num_local_experts": PER_RANK, "hidden_size": HIDDEN, "params_dtype": torch.bfloat16}
    if name.startswith("deepep_v2"):
        return deepep_v2.DeepEPv2Dispatcher(**shape, use_fp8_dispatch=fp8)
    kind = {"mooncake": mooncake.MooncakeEPDispatcher, "nixl": nixl.NixlEPDispatcher}.get(name, deepep.DeepEPDispatcher)
    mode = DeepEPMode.AUTO if kind is deepep.DeepEPDispatcher else DeepEPMode.LOW_LATENCY
    return kind(**shape, deepep_mode=mode, return_recv_hook=fp8)


def compute_here(given):
    """What SGLang's runner of experts makes of the rows of a dispatch."""
    mine = [matrices(rank * PER_RANK + e) for e in range(PER_RANK)]
    x = floats(given.hidden_states, given.hidden_states_scale)
    y = torch.zeros(x.shape)
    weights = given.topk_weights
    if isinstance(given, deepep_v2.DeepEPv2DispatchOutput):
        begins = 0
        for end, expert in zip(given.psum_num_recv_tokens_per_expert.tolist(), mine):
            y[begins:end] = weights[begins:end, None] * compute(x[begins:end], *expert)
            begins = -(-end // given.expert_alignment) * given.expert_alignment
        return deepep_v2.DeepEPv2CombineInput(y.to(torch.bfloat16), None)
    for e, expert in enumerate(mine):
        if hasattr(given, "masked_m"):
            n = int(given.masked_m[e])
            y[e, :n] = compute(x[e, :n], *expert)
        else:
            rows, k = (given.topk_ids == e).nonzero(as_tuple=True)
            y[rows] += weights[rows, k, None] * compute(x[rows], *expert)
    return y.to(torch.bfloat16), given.topk_ids, weights


def step(dispatcher, number, fp8, present):
    x, ids, weights = inputs(rank, number, dist.get_world_size() * PER_RANK)
    given = dispatcher.dispatch(hidden_states=x, topk_output=Names(topk_ids=ids, topk_weights=weights))
    assert (given.hidden_states_scale is not None) == fp8
    check(dispatcher.combine(compute_here(given)), x, ids, weights, fp8, present)

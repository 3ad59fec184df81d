# SPDX-License-Identifier: Apache-2.0
"""Weights of experts move over covey as vLLM's or SGLang's load balancer (EPLB) wants: eplb.py vllm|sglang FOLDER

The client's own are the policy, the plan, and the transfer by isend and irecv. Ours are loads by chance, and weights
that say of which expert they are.
"""

import contextlib
import sys
from types import SimpleNamespace as Names

import torch
import torch.distributed as dist
from on_host import use

import covey.torch  # noqa: F401

LAYERS, EXPERTS, PER_RANK, ROUNDS = 2, 6, 3, 12
SHAPES = ((5,), (4, 3))  # of an expert's weights

dist.init_process_group("covey")
rank, world = dist.get_rank(), dist.get_world_size()
PLACES = world * PER_RANK


def weights(layer, experts):
    return [torch.stack([torch.full(shape, 100.0 * layer + 10 * i + int(e)) for e in experts])
            for i, shape in enumerate(SHAPES)]


def vllm(folder):
    """Returns what plans a round, and what moves the weights: at once for all layers, and by layer in batches."""
    use(folder, ["vllm"], [f"vllm.distributed.eplb.{name}" for name in (
        "eplb_communicator", "eplb_utils", "migration_scheduler", "rebalance_execute", "policy.abstract",
        "policy.default")], {"vllm.utils.gpu_sync_debug": {"gpu_sync_allowed": contextlib.nullcontext}})
    from vllm.distributed.eplb import eplb_communicator, rebalance_execute
    from vllm.distributed.eplb.policy.default import DefaultEplbPolicy

    group = dist.group.WORLD
    room = weights(0, range(PER_RANK))
    link = eplb_communicator.create_eplb_communicator(Names(cpu_group=group, device_group=group), "torch_nccl",
                                                      [room], room)

    def move(number, old, new, here):
        if number % 2:
            return rebalance_execute.rearrange_expert_weights_inplace(old, new, here, room, group, link)
        for layer in range(LAYERS):
            moved = rebalance_execute.transfer_layer(old[layer], new[layer], here[layer], room, group, link,
                                                     layer_idx=layer, enable_migration_batching=True)
            rebalance_execute.move_from_buffer(here[layer], room, moved, new[layer].numpy(), rank)

    return lambda loads, old: DefaultEplbPolicy.rebalance_experts(loads, PLACES, 1, 1, world, old), move


def sglang(folder):
    use(folder, ["sglang", "einops", "msgspec"], ["sglang.srt.environ", "sglang.srt.eplb.expert_location_updater",
                                                  "sglang.srt.eplb.eplb_algorithms.deepseek"], {
        "sglang.srt.elastic_ep.elastic_ep": {"ElasticEPStateManager": Names(instance=lambda: None)},
        "sglang.srt.utils": {"get_bool_env_var": lambda name: False}})
    from sglang.srt.eplb import expert_location_updater
    from sglang.srt.eplb.eplb_algorithms import deepseek

    def move(number, old, new, here):
        for layer in range(LAYERS):
            room = expert_location_updater.create_temp_buffers(here[layer])
            expert_location_updater.update_expert_weights_single_layer(
                here[layer], room, old[layer].tolist(), new[layer].tolist(), PER_RANK, world, rank, world)

    return lambda loads, old: deepseek.rebalance_experts(loads, PLACES, 1, 1, world, False)[0], move


plan, move = {"vllm": vllm, "sglang": sglang}[sys.argv[1]](sys.argv[2])
mine = slice(rank * PER_RANK, (rank + 1) * PER_RANK)
old = (torch.arange(PLACES) % EXPERTS).repeat(LAYERS, 1)
here = [weights(layer, old[layer][mine]) for layer in range(LAYERS)]
moved = 0
for number in range(ROUNDS):
    loads = torch.rand(LAYERS, EXPERTS, generator=torch.Generator().manual_seed(number)) ** 4
    new = torch.as_tensor(plan(loads, old))
    move(number, old, new, here)
    for layer in range(LAYERS):
        for got, want in zip(here[layer], weights(layer, new[layer][mine])):
            assert torch.equal(got, want), (number, layer, got, want)
    moved += int((old != new).sum())
    old = new
assert moved > ROUNDS, moved
print(f"fine: {sys.argv[1]}, rank {rank}, {moved} places changed")
dist.destroy_process_group()

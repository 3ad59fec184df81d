# SPDX-License-Identifier: Apache-2.0
"""ep-run -n RANKS -- python vllm_elastic.py VLLM - vLLM grows and shrinks over nixl_ep, by its own manager.

In the order of vLLM's elastic_execute.py: members stage a larger group and go on; the new worker, which is the last
rank, masks all others and warms up alone; members commit. Then they commit a smaller group, and the last rank ends.
"""

from types import SimpleNamespace as Names

import torch.distributed as dist
from vllm_on_host import MANAGERS, Layer, config, rank, world

store = dist.distributed_c10d._get_default_store()
config.parallel_config.enable_elastic_ep = True
new = world - 1


def manager(size, name):
    """vLLM makes one for each size of the group; the buffer stays."""
    config.parallel_config.data_parallel_size = size
    return MANAGERS["nixl_ep"](Names(rank=lambda: rank, size=lambda: size), Names(store=dist.PrefixStore(name, store)))


def serve(layer, numbers, present):
    for number in numbers:
        layer.step(number, present)
        assert not layer.manager.query_fault(), layer.manager.query_active_mask()


if rank == new:
    layer = Layer("nixl_ep", True, manager(world, "grown"))
    with layer.manager.mask_remote_ranks():
        for number in range(20, 23):
            layer.step(number, [rank])
    store.set("ready", "1")
else:
    layer = Layer("nixl_ep", True, manager(world - 1, "first"))
    serve(layer, range(3), range(world - 1))
    grown = manager(world, "grown")
    grown.stage_ep_size()
    serve(layer, range(3, 6), range(world - 1))
    store.wait(["ready"])
    serve(layer, range(6, 9), range(world - 1))
    grown.commit_ep_size()
    layer = Layer("nixl_ep", True, grown)
serve(layer, range(30, 36), range(world))
print("fine: grown to", world, flush=True)
dist.barrier()
if rank != new:
    shrunk = manager(world - 1, "shrunk")
    shrunk.commit_ep_size()
    layer = Layer("nixl_ep", True, shrunk)
    serve(layer, range(40, 46), range(world - 1))
    print("fine: shrunk to", world - 1, flush=True)
dist.destroy_process_group()

# SPDX-License-Identifier: Apache-2.0
"""bench.py [--device] [--buffers] [--fsdp] - what a call through torch or a buffer costs over the call of C, and a step
of FSDP2 beside NCCL.

Under torchrun. Overhead: us of dist.all_reduce(), asyncOp False, of 2 floats, less those of covey_allreduce() through
ctypes in the same process; of a dispatch and a combine of 8 tokens through covey.ep.Buffer, less those of the calls of C
with the same arguments, on devices until the call returns. Medians of rounds in turn; of buffers the least.
"""

import argparse
import ctypes
import os
import statistics
import time

import torch
import torch.distributed as dist

import covey.torch
from covey import _abi
from covey._library import lib


def turns(functions, calls, rounds, end, choose=statistics.median):
    """us for one call of each of @functions: what @choose takes of @rounds in turn."""
    found = [[] for _ in functions]
    for _ in range(rounds):
        for function, times in zip(functions, found):
            dist.barrier()
            began = time.perf_counter()
            for _ in range(calls):
                function()
            end()
            times.append((time.perf_counter() - began) / calls * 1e6)
    return [choose(times) for times in found]


def overhead(device):
    group, x = dist.group.WORLD, torch.zeros(2, device=device)
    result, handle = _abi.covey_result(), group.covey._handle
    at, on = x.data_ptr(), torch.cuda.current_stream().cuda_stream or 1 if device == "cuda" else None

    def bare():
        lib.covey_allreduce(at, at, 2, _abi.Dtype.FLOAT32, _abi.Redop.SUM, handle, on, ctypes.byref(result))

    def through_torch():
        dist.all_reduce(x)

    end = torch.cuda.synchronize if device == "cuda" else lambda: None
    c, python = turns([bare, through_torch], 500, 21, end)
    return f"all_reduce of 8 bytes, {device}: C {c:.1f} us, torch {python:.1f} us, overhead {python - c:.1f} us"


def buffers(device):
    """Of a dispatch and a combine, with 8 experts on each rank and 8 for each token."""
    from covey.ep import Buffer
    from covey.ep._calls import _point

    rank, world, tokens, hidden = dist.get_rank(), dist.get_world_size(), 8, 7168 if device == "cuda" else 128
    buffer = Buffer(rank=rank, group=dist.group.WORLD, explicitly_destroy=True)
    buffer.update_memory_buffers(world, 8, 1 << 20)
    buffer.connect_ranks(list(range(world)))
    x = torch.ones(tokens, hidden, dtype=torch.bfloat16, device=device)
    ids = torch.arange(8, device=device).repeat(tokens, 1)
    weights = torch.ones(tokens, 8, device=device)

    def dispatch():
        return buffer.dispatch(x, ids, tokens, use_fp8=False)

    y, _, handle, _, _ = dispatch()
    rows, calls, ep = handle.rows, buffer.calls, buffer.calls.pair(handle.rows.shape)
    given = {"experts64": ids, "active_ranks": calls.active(x.device)}
    out, kinds = torch.empty_like(x), (_abi.covey_dispatch_args, _abi.covey_combine_args)
    sends, brings = (kind(ctypes.sizeof(kind), tokens) for kind in kinds)
    for args, places, more in ((sends, rows.layout.outputs, {"x": x}),
                               (brings, rows.layout.of_combine, {"y": y, "weights": weights, "out": out})):
        rows.point(args, places)
        _point(args, x.device, {**given, **more})
    result, on = _abi.covey_result(), torch.cuda.current_stream().cuda_stream or 1 if device == "cuda" else None

    def bare(call, args):
        return lambda: call(ep._live(), ctypes.byref(args), on, ctypes.byref(result))

    ways = [bare(lib.covey_dispatch, sends), dispatch, bare(lib.covey_combine, brings),
            lambda: buffer.combine(y, ids, weights, handle)]
    found = turns(ways, 20, 201, lambda: None, min)
    buffer.destroy()
    return "\n".join(f"{name} of 8 tokens, {device}: C {c:.1f} us, buffer {python:.1f} us, overhead {python - c:.1f} us"
                     for name, c, python in zip(("dispatch", "combine"), found[::2], found[1::2]))


def fsdp_step():
    """Steps of a stack of blocks under FSDP2, beside NCCL in the same processes: ms, and the ratio."""
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.fsdp import fully_shard

    groups, steps = {"covey": dist.group.WORLD, "nccl": dist.new_group(backend="nccl")}, {}
    for name, pg in groups.items():
        mesh = DeviceMesh.from_group(pg, "cuda", mesh_dim_names=("dp",))
        torch.manual_seed(0)
        with torch.device("cuda"):
            net = torch.nn.Sequential(*(torch.nn.TransformerEncoderLayer(1024, 16, 4096, batch_first=True, dropout=0.0)
                                        for _ in range(8))).bfloat16()
            x = torch.randn(8, 512, 1024, dtype=torch.bfloat16)
        for layer in net:
            fully_shard(layer, mesh=mesh)
        fully_shard(net, mesh=mesh)
        optimizer = torch.optim.SGD(net.parameters(), lr=1e-4)

        def step(net=net, x=x, optimizer=optimizer):
            net(x).float().square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()

        for _ in range(3):
            step()
        steps[name] = step
    ours, theirs = turns(list(steps.values()), 10, 7, torch.cuda.synchronize)
    return f"FSDP2 step: covey {ours / 1000:.2f} ms, NCCL {theirs / 1000:.2f} ms, ratio {ours / theirs:.3f}"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", action="store_true", help="on CUDA devices")
    parser.add_argument("--buffers", action="store_true", help="buffers, too")
    parser.add_argument("--fsdp", action="store_true", help="the step of FSDP2, too")
    args = parser.parse_args()
    if args.device:
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]) % torch.cuda.device_count())
    torch.set_num_threads(1)
    dist.init_process_group("covey", pg_options=covey.torch.Options(device="auto" if args.device else "none"))
    device = "cuda" if args.device else "cpu"
    lines = [overhead(device)] + ([buffers(device)] if args.buffers else []) + ([fsdp_step()] if args.fsdp else [])
    if dist.get_rank() == 0:
        print("\n".join(lines), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

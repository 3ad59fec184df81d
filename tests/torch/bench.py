# SPDX-License-Identifier: Apache-2.0
"""bench.py [--device] [--fsdp] - what a call through torch costs over the call of C, and a step of FSDP2 beside NCCL.

Under torchrun. Overhead: us of dist.all_reduce(), asyncOp False, of 2 floats, less those of covey_allreduce() through
ctypes in the same process; medians of rounds in turn.
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


def turns(functions, calls, rounds, end):
    """us for one call of each of @functions: medians over @rounds, in turn."""
    found = [[] for _ in functions]
    for _ in range(rounds):
        for function, times in zip(functions, found):
            dist.barrier()
            began = time.perf_counter()
            for _ in range(calls):
                function()
            end()
            times.append((time.perf_counter() - began) / calls * 1e6)
    return [statistics.median(times) for times in found]


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
    parser.add_argument("--fsdp", action="store_true", help="the step of FSDP2, too")
    args = parser.parse_args()
    if args.device:
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    torch.set_num_threads(1)
    dist.init_process_group("covey", pg_options=covey.torch.Options(device="auto" if args.device else "none"))
    lines = [overhead("cuda" if args.device else "cpu")] + ([fsdp_step()] if args.fsdp else [])
    if dist.get_rank() == 0:
        print("\n".join(lines), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

# SPDX-License-Identifier: Apache-2.0
"""libnccl.so.2 as vLLM and SGLang load it: by ctypes, with these names, results and arguments."""

import ctypes
import os
import subprocess
import sys
from pathlib import Path

import pytest

P, I, N = ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t


class Id(ctypes.Structure):
    _fields_ = [("internal", ctypes.c_byte * 128)]


VLLM = {
    "ncclGetErrorString": (ctypes.c_char_p, [I]),
    "ncclGetVersion": (I, [ctypes.POINTER(I)]),
    "ncclGetUniqueId": (I, [ctypes.POINTER(Id)]),
    "ncclCommInitRank": (I, [ctypes.POINTER(P), I, Id, I]),
    "ncclAllReduce": (I, [P, P, N, I, I, P, P]),
    "ncclReduce": (I, [P, P, N, I, I, I, P, P]),
    "ncclAllGather": (I, [P, P, N, I, P, P]),
    "ncclReduceScatter": (I, [P, P, N, I, I, P, P]),
    "ncclSend": (I, [P, N, I, I, P, P]),
    "ncclRecv": (I, [P, N, I, I, P, P]),
    "ncclBroadcast": (I, [P, P, N, I, I, P, P]),
    "ncclCommDestroy": (I, [P]),
    "ncclGroupStart": (I, []),
    "ncclGroupEnd": (I, []),
    "ncclCommWindowRegister": (I, [P, P, N, ctypes.POINTER(P), I]),
    "ncclCommWindowDeregister": (I, [P, P]),
}
SGLANG = {name: VLLM[name] for name in (
    "ncclGetErrorString", "ncclGetVersion", "ncclGetUniqueId", "ncclCommInitRank", "ncclAllReduce", "ncclAllGather",
    "ncclReduceScatter", "ncclSend", "ncclRecv", "ncclBroadcast", "ncclCommDestroy", "ncclGroupStart", "ncclGroupEnd",
    "ncclCommWindowRegister", "ncclCommWindowDeregister")}


def library(*where):
    path = Path(os.environ.get("COVEY_BUILD", ".")).joinpath(*where)
    if not path.exists():
        pytest.skip(f"no {'/'.join(where)} in this build: it takes COVEY_CUDA")
    return path


def load(path, table):
    loaded = ctypes.CDLL(str(path))
    functions = {}
    for name, (result, arguments) in table.items():
        functions[name] = getattr(loaded, name)
        functions[name].restype, functions[name].argtypes = result, arguments
    return functions


@pytest.mark.parametrize("table", [VLLM, SGLANG], ids=["vllm", "sglang"])
def test_tables_load(table):
    f = load(library("covey", "nccl", "libnccl.so.2"), table)
    version = I()
    assert f["ncclGetVersion"](ctypes.byref(version)) == 0
    assert version.value >= 22703  # from which on vLLM registers windows
    assert b"invalid usage" in f["ncclGetErrorString"](5)
    assert f["ncclCommDestroy"](None) == 0
    assert f["ncclAllReduce"](None, None, 1, 7, 0, None, None) == 4


# Two processes with the kernels on a CPU, as vLLM's communicator begins: the id in bytes, a sum, a group of messages.
PROGRAM = """
import ctypes, os, sys, time
sys.path.insert(0, {tests!r})
from test_nccl import Id, P, VLLM, load
rank, here = int(sys.argv[1]), {here!r}
cuda = ctypes.CDLL({cuda!r}, ctypes.RTLD_GLOBAL)
f = load({nccl!r}, VLLM)
def ok(code):
    assert code == 0, f["ncclGetErrorString"](code)
ok(cuda.cudaSetDevice(rank))
id = Id()
if rank == 0:
    ok(f["ncclGetUniqueId"](ctypes.byref(id)))
    with open(here + "/new", "wb") as file:
        file.write(bytes(id))
    os.rename(here + "/new", here + "/id")
while not os.path.exists(here + "/id"):
    time.sleep(0.001)
ctypes.memmove(ctypes.addressof(id), open(here + "/id", "rb").read(), 128)
comm, stream, memory = P(), P(), P()
ok(f["ncclCommInitRank"](ctypes.byref(comm), 2, id, rank))
ok(cuda.cudaStreamCreateWithFlags(ctypes.byref(stream), 1))
ok(cuda.cudaMalloc(ctypes.byref(memory), 4096))
values = (ctypes.c_float * 1024).from_address(memory.value)
values[0], values[1] = rank + 1, 10 * rank
ok(f["ncclAllReduce"](memory, memory.value + 64, 1, 7, 0, comm, stream))
ok(f["ncclGroupStart"]())
ok(f["ncclSend"](memory.value + 4, 1, 7, 1 - rank, comm, stream))
ok(f["ncclRecv"](memory.value + 128, 1, 7, 1 - rank, comm, stream))
ok(f["ncclGroupEnd"]())
ok(cuda.cudaStreamSynchronize(stream))
assert values[16] == 3 and values[32] == 10 * (1 - rank), (values[16], values[32])
ok(f["ncclCommDestroy"](comm))
"""


def test_two_processes(tmp_path):
    nccl, cuda = library("tests", "nccl", "libnccl.so.2"), library("tests", "gpu", "cpu", "libcovey_cuda.so")
    program = PROGRAM.format(tests=str(Path(__file__).parent), here=str(tmp_path), nccl=str(nccl), cuda=str(cuda))
    # Its threads' words are found without a call, so there is room for them only at the start of a process.
    environment = {k: v for k, v in os.environ.items() if k != "COVEY_STORE"} | {"LD_PRELOAD": str(cuda)}
    ranks = [subprocess.Popen([sys.executable, "-c", program, str(r)], stdout=subprocess.PIPE, env=environment,
                              stderr=subprocess.STDOUT, text=True) for r in range(2)]
    try:
        said = [r.communicate(timeout=120)[0] for r in ranks]
    finally:
        for r in ranks:
            r.kill()
    assert [r.returncode for r in ranks] == [0, 0], said

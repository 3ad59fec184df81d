# SPDX-License-Identifier: Apache-2.0
"""libnccl.so.2 in the place of torch's NCCL: every symbol that torch takes from it is found there."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

PROGRAM = "import torch; print(torch.__version__)"


def test_import_torch():
    library = Path(os.environ.get("COVEY_BUILD", ".")) / "covey" / "nccl" / "libnccl.so.2"
    if not library.exists():
        pytest.skip("no libnccl.so.2 in this build: it takes COVEY_CUDA")
    cuda = Path(torch.__file__).parent / "lib" / "libtorch_cuda.so"
    if not cuda.exists():
        pytest.skip("a torch without CUDA takes nothing from NCCL")
    environment = {**os.environ, "LD_PRELOAD": str(library), "LD_DEBUG": "bindings", "LD_BIND_NOW": "1"}
    done = subprocess.run([sys.executable, "-c", PROGRAM], env=environment, capture_output=True, text=True, timeout=300,
                          errors="replace")
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.strip() == torch.__version__
    bound = [line for line in done.stderr.splitlines() if "libtorch_cuda.so" in line and "symbol `nccl" in line]
    assert len(bound) >= 38
    elsewhere = [line for line in bound if f"to {library} " not in line]
    assert not elsewhere, elsewhere[:3]

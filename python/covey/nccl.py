# SPDX-License-Identifier: Apache-2.0
"""`python -m covey.nccl` prints the path of libnccl.so.2, for LD_PRELOAD: NCCL's functions over covey."""

import sys

from pathlib import Path

from ._library import SONAME


def main() -> None:
    """It is below the folder of the libcovey that this process has opened."""
    opened = next(line.split()[-1] for line in Path("/proc/self/maps").read_text().splitlines() if SONAME in line)
    path = Path(opened).parent / "covey" / "nccl" / "libnccl.so.2"
    if not path.exists():
        sys.exit(f"{path} is not there: this covey was built without CUDA. tools/wheel, or cmake, where nvcc is")
    print(path)


if __name__ == "__main__":
    main()

# SPDX-License-Identifier: Apache-2.0
"""Runs a tool of covey: the one in this package, else the one in PATH."""

import os
import shutil
import sys
from pathlib import Path

from ._library import HERE, lib


def run(name: str) -> None:
    """Becomes the tool @name, with this process's arguments."""
    path = HERE / "bin" / name
    program = str(path) if path.exists() else shutil.which(name)
    if program and not Path(program).read_bytes().startswith(b"\x7fELF"):  # the script that pip made of this module
        program = None
    if not program:
        sys.exit(f"{name} is not here: it comes with covey's wheel, or with its package")
    os.environ.setdefault("COVEY_LIBRARY", lib._name)
    os.execv(program, [name, *sys.argv[1:]])

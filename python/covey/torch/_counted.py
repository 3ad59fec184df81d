# SPDX-License-Identifier: Apache-2.0
"""CommDebugMode of torch counts collectives of covey, as it does those of a process group in C++.

It counts what passes torch's dispatcher, which a process group in Python is not asked through.
"""

import contextlib
import sys
from typing import Any, Iterator

import torch
from torch.utils._python_dispatch import _disable_current_modes


class _Counted:
    """Stands for an operation of torch that has been called, in what a mode is told."""

    def __init__(self, packet: Any):
        self._overloadpacket = packet

    def __call__(self) -> None:
        pass


@contextlib.contextmanager
def counted(name: str) -> Iterator[None]:
    """A collective of this @name of a process group is counted, and runs without modes, so that it is counted once."""
    debug = sys.modules.get("torch.distributed.tensor.debug._comm_mode")
    packet = getattr(torch.ops.c10d, f"{name}_", None)
    with _disable_current_modes() as modes:
        for mode in modes:
            if packet and debug and isinstance(mode, debug.CommDebugMode):
                mode.__torch_dispatch__(_Counted(packet), ())
        yield

# SPDX-License-Identifier: Apache-2.0
"""Handles as other libraries have them: tuples of tensors, which callers may take apart and put together again."""

from collections.abc import Sequence
from typing import Any

import torch

from .._plain import plain


class Handle(Sequence):
    """What a dispatch gives its combine. A sequence of what is in the other library's handle, made when it is asked for."""

    def _make(self) -> tuple:
        """The parts; the first one is a tensor."""
        raise NotImplementedError

    @plain
    def _parts(self) -> tuple:
        first, *rest = self._make()
        first = first.detach()  # another object: the handle must not have one that has it
        first.covey_handle = self
        return (first, *rest)

    def __len__(self) -> int:
        return len(self._parts())

    def __getitem__(self, i):
        return self._parts()[i]

    def __iter__(self):
        return iter(self._parts())


def handle_of(handle: Any, kind: type) -> Any:
    """The handle of this kind that @handle is, or whose parts it has: of these the first one counts."""
    found = handle
    if isinstance(handle, (tuple, list)) and handle and isinstance(handle[0], torch.Tensor):
        found = getattr(handle[0], "covey_handle", handle)
    if not isinstance(found, kind):
        raise TypeError(f"handle is {type(handle).__name__}: it must be the one that the dispatch of these tokens gave, or "
                        "a tuple of its parts")
    return found

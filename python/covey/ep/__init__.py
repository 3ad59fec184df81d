# SPDX-License-Identifier: Apache-2.0
"""Expert parallelism: dispatch and combine on arrays (Ep), and buffers in the shape of other libraries.

Buffer needs torch, and so do the modules covey.ep.deep_ep and covey.ep.mooncake; Ep does not.
"""

from typing import Any

from ._elastic import from_elastic_info, to_elastic_info
from ._pair import ARRIVED, Ep, Routed, from_bf16, to_bf16

_OF_BUFFER = ("Buffer", "Config", "EventOverlap", "topk_idx_t")


def __getattr__(name: str) -> Any:
    if name not in _OF_BUFFER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from . import buffer

    return getattr(buffer, name)


__all__ = ["ARRIVED", "Ep", "Routed", "from_bf16", "from_elastic_info", "to_bf16", "to_elastic_info"]  # what needs no torch

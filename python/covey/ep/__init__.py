# SPDX-License-Identifier: Apache-2.0
"""Expert parallelism: dispatch and combine on arrays (Ep)."""

from ._pair import Ep, Routed, from_bf16, to_bf16

__all__ = ["Ep", "Routed", "from_bf16", "to_bf16"]

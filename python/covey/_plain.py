# SPDX-License-Identifier: Apache-2.0
"""Tensors of covey's own, and writes into those of callers, are the same whatever modes of torch a caller has set."""

import functools
from typing import Any, Callable

import torch
from torch import _C


def plain(function: Callable) -> Callable:
    """@function runs as C++ below autograd does.

    No default device, torch.device context, inference mode, FakeTensorMode or transform of functorch reaches what it
    makes, and it may write into tensors that need gradients or were made in inference mode.
    """

    @functools.wraps(function)
    def run(*arguments: Any, **more: Any) -> Any:
        with _C.DisableTorchFunction(), _C._DisableTorchDispatch(), _C._DisableFuncTorch(), \
                _C._InferenceMode(False), _C._AutoDispatchBelowADInplaceOrView():
            return function(*arguments, **more)

    return run


def own(function: Callable) -> Callable:
    """plain() for a @function that writes into no tensor of a caller: without a mode there is nothing to guard."""
    guarded = plain(function)

    @functools.wraps(function)
    def run(*arguments: Any, **more: Any) -> Any:
        if _C._len_torch_function_stack() or _C._len_torch_dispatch_stack() or _C.is_inference_mode_enabled() \
                or _C._functorch.peek_interpreter_stack():
            return guarded(*arguments, **more)
        return function(*arguments, **more)

    return run


empty, zeros = own(torch.empty), own(torch.zeros)

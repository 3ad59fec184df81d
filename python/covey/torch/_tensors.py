# SPDX-License-Identifier: Apache-2.0
"""Tensors as covey takes them: datatypes, memory, and how a reduction of torch is one of covey."""

import ctypes
from typing import Callable, List, NamedTuple, Optional, Sequence

import torch
from torch.distributed import ReduceOp

from .._plain import plain
from .._abi import Dtype, Redop

REDUCED = {
    torch.int8: Dtype.INT8, torch.uint8: Dtype.UINT8, torch.int16: Dtype.INT16, torch.int32: Dtype.INT32,
    torch.int64: Dtype.INT64, torch.float16: Dtype.FLOAT16, torch.bfloat16: Dtype.BFLOAT16,
    torch.float32: Dtype.FLOAT32, torch.float64: Dtype.FLOAT64,
}
for _name, _dtype in (("uint32", Dtype.UINT32), ("uint64", Dtype.UINT64)):
    if hasattr(torch, _name):
        REDUCED[getattr(torch, _name)] = _dtype

_REDOPS = {ReduceOp.SUM: Redop.SUM, ReduceOp.AVG: Redop.AVG, ReduceOp.PRODUCT: Redop.PROD, ReduceOp.MIN: Redop.MIN,
           ReduceOp.MAX: Redop.MAX}
_OF_BOOL = {ReduceOp.SUM: Redop.MAX, ReduceOp.MAX: Redop.MAX, ReduceOp.PRODUCT: Redop.MIN, ReduceOp.MIN: Redop.MIN,
            ReduceOp.BOR: Redop.MAX, ReduceOp.BAND: Redop.MIN}
_FOLDS = {ReduceOp.BAND: torch.bitwise_and, ReduceOp.BOR: torch.bitwise_or, ReduceOp.BXOR: torch.bitwise_xor}


def dense(tensor: torch.Tensor, what: str) -> torch.Tensor:
    """@tensor, if its elements lie side by side in its own order."""
    if tensor.is_sparse or tensor.layout is not torch.strided:
        raise ValueError(f"{what} is {tensor.layout}: covey moves dense tensors")
    if not tensor.is_contiguous():
        raise ValueError(f"{what} is not contiguous: tensors must be contiguous")
    return tensor


@plain
def whole(tensor: torch.Tensor, what: str) -> torch.Tensor:
    """@tensor, if its elements fill one piece of memory, in whatever order: enough where all ranks do the same."""
    if tensor.layout is torch.strided and not tensor.is_contiguous():
        if torch.empty_like(tensor, device="meta").stride() == tensor.stride():  # kept, if there are no gaps
            return tensor
    return dense(tensor, what)


def bytes_of(tensor: torch.Tensor) -> tuple:
    """Number of elements and datatype with which covey moves it."""
    dtype = REDUCED.get(tensor.dtype)
    if dtype is not None:
        return tensor.numel(), dtype
    return tensor.numel() * tensor.element_size(), Dtype.UINT8


class Reduction(NamedTuple):
    """How covey reduces tensors of a datatype by an operation of torch."""

    redop: Optional[Redop]  # None: covey has none, and @fold does it on gathered blocks
    dtype: Optional[Dtype]
    per_element: int  # elements of covey for one of torch
    fold: Optional[Callable]
    scale: object  # None, or what the inputs are multiplied by before: a number or a tensor


def reduction(op, dtype: torch.dtype) -> Reduction:
    """Raises TypeError where torch's @op has no meaning for @dtype, or covey cannot do it."""
    kind = op.op if hasattr(op, "op") else op
    if isinstance(op, ReduceOp) and op == ReduceOp.PREMUL_SUM:
        scale = op.__getstate__()[1]
        return reduction(ReduceOp.SUM, dtype)._replace(scale=scale)
    for known in (ReduceOp.SUM, ReduceOp.AVG, ReduceOp.PRODUCT, ReduceOp.MIN, ReduceOp.MAX, ReduceOp.BAND, ReduceOp.BOR,
                  ReduceOp.BXOR):
        if op == known:
            kind = known
            break
    if dtype is torch.bool and kind in _OF_BOOL:
        return Reduction(_OF_BOOL[kind], Dtype.UINT8, 1, None, None)
    if dtype.is_complex and kind in (ReduceOp.SUM, ReduceOp.AVG) and dtype in (torch.complex64, torch.complex128):
        return Reduction(_REDOPS[kind], Dtype.FLOAT32 if dtype is torch.complex64 else Dtype.FLOAT64, 2, None, None)
    if dtype in REDUCED and kind in _REDOPS:
        return Reduction(_REDOPS[kind], REDUCED[dtype], 1, None, None)
    if kind in _FOLDS and not dtype.is_floating_point and not dtype.is_complex:
        return Reduction(None, None, 1, _FOLDS[kind], None)
    raise TypeError(f"{dtype} has no reduction {kind} in covey")


def overlap(tensors: List[torch.Tensor]) -> bool:
    """Have two of them memory in common? All are without gaps."""
    if len(tensors) < 2:
        return False
    places = sorted((t.data_ptr(), t.data_ptr() + t.numel() * t.element_size()) for t in tensors if t.numel())
    return any(end > start for (_, end), (start, _) in zip(places, places[1:]))


@plain
def flat(tensors: List[torch.Tensor]) -> torch.Tensor:
    """Copies, one after the other; of one datatype."""
    kinds = {(t.dtype, t.device) for t in tensors}
    if len(kinds) != 1:
        raise TypeError(f"tensors of {sorted(str(dtype) for dtype, _ in kinds)}: all must be of one type, on one device")
    return torch.cat([t.reshape(-1) for t in tensors])


@plain
def unflat(source: torch.Tensor, tensors: List[torch.Tensor]) -> None:
    """The reverse, into @tensors."""
    at = 0
    for t in tensors:
        t.copy_(source[at: at + t.numel()].view(t.shape))
        at += t.numel()


def places(counts: Sequence[int]) -> tuple:
    """Counts and displacements of blocks without gaps, as C has them."""
    kind, at, starts = ctypes.c_size_t * len(counts), 0, []
    for n in counts:
        starts.append(at)
        at += n
    return kind(*counts), kind(*starts)

# SPDX-License-Identifier: Apache-2.0
"""Arrays as the C interface takes them: an address, a number of elements, a datatype, and the kind of memory.

Three protocols are understood, in this order: numpy's `__array_interface__`, `__cuda_array_interface__`, and
`__dlpack__`. An array must be contiguous in C order.
"""

import ctypes
import sys
from typing import Any, NamedTuple, Optional

from ._abi import COVEY_STREAM_DEFAULT, Dtype


class Buffer(NamedTuple):
    """One array. `owner` keeps it alive."""

    address: int
    count: int  # elements
    dtype: Dtype
    itemsize: int
    on_device: bool
    owner: Any


_KINDS = {
    "|i1": Dtype.INT8, "|u1": Dtype.UINT8, "<i2": Dtype.INT16, "<i4": Dtype.INT32, "<u4": Dtype.UINT32,
    "<i8": Dtype.INT64, "<u8": Dtype.UINT64, "<f2": Dtype.FLOAT16, "<f4": Dtype.FLOAT32, "<f8": Dtype.FLOAT64,
}
_BITS = {"<u2": Dtype.BFLOAT16, "|V2": Dtype.BFLOAT16, "|V1": Dtype.UINT8, "|b1": Dtype.UINT8}
_SIZES = {
    Dtype.INT8: 1, Dtype.UINT8: 1, Dtype.INT16: 2, Dtype.INT32: 4, Dtype.UINT32: 4, Dtype.INT64: 8, Dtype.UINT64: 8,
    Dtype.FLOAT16: 2, Dtype.FLOAT32: 4, Dtype.FLOAT64: 8, Dtype.BFLOAT16: 2,
}


def itemsize(dtype: Dtype) -> int:
    """Bytes of an element."""
    return _SIZES[dtype]


def _contiguous(shape, strides, size) -> bool:
    """@strides in bytes, or None."""
    if strides is None or 0 in shape:
        return True
    expected = size
    for n, stride in zip(reversed(shape), reversed(strides)):
        if n != 1 and stride != expected:
            return False
        expected *= n
    return True


def _product(shape) -> int:
    n = 1
    for side in shape:
        n *= side
    return n


def _refuse_strides(array):
    raise ValueError(f"{type(array).__name__} is not contiguous in C order: make it so first (ascontiguousarray, "
                     "contiguous)")


def _by_interface(array, interface, on_device, writable, bits) -> Buffer:
    kind, shape = interface["typestr"], interface["shape"]
    dtype = _KINDS.get(kind, _BITS.get(kind) if bits else None)
    if str(getattr(array, "dtype", "")).removeprefix("torch.") == "bfloat16":  # a void, or none, in these interfaces
        dtype = Dtype.BFLOAT16
    if dtype is None:
        raise TypeError(f"elements of type {getattr(array, 'dtype', kind)} are not known to covey: view them as one of "
                        f"{', '.join(d.name.lower() for d in Dtype)}")
    address, read_only = interface["data"]
    if writable and read_only:
        raise ValueError("the array to receive into is read-only")
    if not _contiguous(shape, interface.get("strides"), _SIZES[dtype]):
        _refuse_strides(array)
    return Buffer(address or 0, _product(shape), dtype, _SIZES[dtype], on_device, array)


# ---- DLPack: struct DLManagedTensor begins with the tensor ----

class _Tensor(ctypes.Structure):
    _fields_ = [("data", ctypes.c_void_p), ("device_type", ctypes.c_int32), ("device_id", ctypes.c_int32),
                ("ndim", ctypes.c_int32), ("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16),
                ("shape", ctypes.POINTER(ctypes.c_int64)), ("strides", ctypes.POINTER(ctypes.c_int64)),
                ("byte_offset", ctypes.c_uint64)]


_DL = {(0, 8): Dtype.INT8, (0, 16): Dtype.INT16, (0, 32): Dtype.INT32, (0, 64): Dtype.INT64, (1, 8): Dtype.UINT8,
       (1, 32): Dtype.UINT32, (1, 64): Dtype.UINT64, (2, 16): Dtype.FLOAT16, (2, 32): Dtype.FLOAT32,
       (2, 64): Dtype.FLOAT64, (4, 16): Dtype.BFLOAT16}
_CPU, _CUDA, _PINNED, _MANAGED = 1, 2, 3, 13

_pointer = ctypes.pythonapi.PyCapsule_GetPointer
_pointer.restype, _pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]


def _by_dlpack(array, bits) -> Buffer:
    capsule = array.__dlpack__()
    tensor = _Tensor.from_address(_pointer(capsule, b"dltensor"))
    dtype = _DL.get((tensor.code, tensor.bits)) if tensor.lanes == 1 else None
    if bits and (tensor.code, tensor.bits, tensor.lanes) == (6, 8, 1):  # bool
        dtype = Dtype.UINT8
    if dtype is None:
        raise TypeError(f"elements of type {getattr(array, 'dtype', (tensor.code, tensor.bits))} are not known to covey")
    if tensor.device_type not in (_CPU, _CUDA, _PINNED, _MANAGED):
        raise TypeError(f"memory of DLPack's device type {tensor.device_type} is none that covey can use")
    shape = tensor.shape[: tensor.ndim]
    size = _SIZES[dtype]
    strides = [s * size for s in tensor.strides[: tensor.ndim]] if tensor.strides else None
    if not _contiguous(shape, strides, size):
        _refuse_strides(array)
    return Buffer((tensor.data or 0) + tensor.byte_offset, _product(shape), dtype, size,
                  tensor.device_type == _CUDA, (array, capsule))


def buffer(array: Any, writable: bool = False, bits: bool = False) -> Buffer:
    """@array as covey takes it. @bits: uint16 has the bits of bfloat16, void those of an 8-bit float, a bool is a byte.

    Raises:
        TypeError: no array, or elements that covey does not know
        ValueError: not contiguous, or read-only and @writable
    """
    interface = getattr(array, "__array_interface__", None)
    if interface is not None:
        if not hasattr(array, "__setitem__"):  # a numpy scalar: the interface is that of a copy, which is gone by now
            raise TypeError(f"{type(array).__name__} is a value and no memory: make it an array")
        return _by_interface(array, interface, False, writable, bits)
    try:
        interface = getattr(array, "__cuda_array_interface__", None)
    except (TypeError, RuntimeError, AttributeError):  # torch has no such type for bfloat16
        interface = None
    if interface is not None:
        return _by_interface(array, interface, True, writable, bits)
    if hasattr(array, "__dlpack__"):
        return _by_dlpack(array, bits)
    raise TypeError(f"{type(array).__name__} is no array: it has none of __array_interface__, __cuda_array_interface__ "
                    "and __dlpack__")


def stream_of(stream: Any, on_device: bool) -> Optional[int]:
    """The stream as an address: of a number, torch's or CuPy's stream; None: CUDA's default stream, if @on_device."""
    if not on_device:
        if stream is not None:
            raise ValueError("a stream is for arrays on a device, and these are in host memory")
        return None
    for name in ("cuda_stream", "ptr", "handle"):
        if hasattr(stream, name):
            stream = getattr(stream, name)
            break
    return int(stream) if stream else COVEY_STREAM_DEFAULT


assert sys.byteorder == "little", "covey is for little-endian machines"

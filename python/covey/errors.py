# SPDX-License-Identifier: Apache-2.0
"""An exception for each error code of covey.h, and how one is made from a call's return value."""

import ctypes
from typing import TYPE_CHECKING, Type

from . import _abi
from ._library import lib

_RANGES = ((-19, "CallError"), (-39, "LossError"), (-59, "HandleError"), (-79, "ProcessError"))


class Error(Exception):
    """A call of covey failed.

    Attributes:
        code: COVEY_ERR_*, negative
        name: the name of the code, as "MISMATCH"
        rank: the rank concerned; None: none
        epoch: the epoch that this rank knew
        seq: the operation concerned; 0: none
        cause: one line: the cause that was seen
    """

    code = 0
    name = ""

    def __init__(self, code, cause="", rank=None, epoch=0, seq=0):
        self.code, self.cause, self.rank, self.epoch, self.seq = code, cause, rank, epoch, seq
        self.name, text = _abi.ERRORS.get(code, (str(code), "unknown error"))
        where = [f"rank {rank}" if rank is not None else "", f"epoch {epoch}" if epoch else "",
                 f"operation {seq}" if seq else ""]
        where = ", ".join(filter(None, where))
        super().__init__(f"{text} ({self.name})" + (f": {cause}" if cause else "") + (f" [{where}]" if where else ""))


class CallError(Error):
    """This call failed: codes -1 to -19."""


class LossError(Error):
    """One peer is lost: codes -20 to -39."""


class HandleError(Error):
    """The group handle has ended: codes -40 to -59."""


class ProcessError(Error):
    """The handle is not of this process: codes -60 to -79."""


if TYPE_CHECKING:  # the classes below are made from the header's list
    def __getattr__(name: str) -> Type[Error]: ...


_BUILTIN = {"TIMEOUT": TimeoutError, "NOMEM": MemoryError, "INVAL": ValueError}  # who catches these catches ours
_BY_CODE = {}
for _code, (_name, _text) in _abi.ERRORS.items():
    _base = globals()[next(base for lowest, base in _RANGES if _code >= lowest)]
    _bases = (_base, _BUILTIN[_name]) if _name in _BUILTIN else (_base,)
    _class = type(_name.capitalize() + "Error", _bases, {"__doc__": _text, "__module__": __name__})
    _BY_CODE[_code] = globals()[_class.__name__] = _class
del _code, _name, _text, _base, _bases, _class


def error_of(code: int, group=None, outcome=None) -> Error:
    """The exception for @code, with what covey_last_error() knows of it.

    Args:
        group: a handle; None: the last failed join of this thread
        outcome: of the operation, if it was decided
    """
    kind = _BY_CODE.get(code, Error)
    if code == -60:  # FORKED: in the child nothing of the handle is looked at
        return kind(code)
    info = _abi.covey_error_info()
    lib.covey_last_error(group, ctypes.byref(info))
    epoch, seq = (outcome.epoch, outcome.seq) if outcome else (info.epoch, info.seq)
    if info.err != code:
        return kind(code, epoch=epoch, seq=seq)
    return kind(code, info.cause.decode(errors="replace"), info.rank if info.rank >= 0 else None, epoch, seq)


def check(code: int, group=None) -> None:
    """Raises the exception of @code if it is not 0."""
    if code:
        raise error_of(code, group)

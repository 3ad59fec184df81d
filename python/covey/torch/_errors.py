# SPDX-License-Identifier: Apache-2.0
"""Errors of covey that torch's users catch as well: each is a RuntimeError of torch.distributed, too."""

from contextlib import contextmanager
from functools import lru_cache

from torch.distributed import DistBackendError

from ..errors import Error


@lru_cache(maxsize=None)
def _twin(kind):
    return type(kind.__name__, (kind, DistBackendError), {"__module__": kind.__module__, "__doc__": kind.__doc__})


def translated(error: Error) -> Error:
    """@error as one that is a DistBackendError, too."""
    if isinstance(error, DistBackendError):
        return error
    return _twin(type(error))(error.code, error.cause, error.rank, error.epoch, error.seq)


@contextmanager
def errors_of_torch():
    """Errors of covey leave it as errors of both."""
    try:
        yield
    except Error as error:
        raise translated(error) from None

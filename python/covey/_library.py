# SPDX-License-Identifier: Apache-2.0
"""Finds libcovey, opens it, and gives each function its types."""

import ctypes
import ctypes.util
import os
from pathlib import Path

from . import _abi

HERE = Path(__file__).parent
SONAME = f"libcovey.so.{_abi.COVEY_VERSION_MAJOR}.{_abi.COVEY_VERSION_MINOR}"


def _candidates():
    """Where the library may be, in order: COVEY_LIBRARY, this package, the loader's path."""
    if os.environ.get("COVEY_LIBRARY"):
        return [os.environ["COVEY_LIBRARY"]]
    return [*(str(path) for path in [HERE / "lib" / SONAME] if path.exists()), SONAME]


def _open():
    failures = []
    for name in _candidates():
        try:
            return ctypes.CDLL(name)
        except OSError as error:
            failures.append(str(error))
    raise ImportError("libcovey is not found: install the wheel of covey, or set COVEY_LIBRARY to the path of "
                      f"{SONAME} ({'; '.join(failures)})")


def _load():
    library = _open()
    want = f"{_abi.COVEY_VERSION_MAJOR}.{_abi.COVEY_VERSION_MINOR}"
    try:
        library.covey_version.restype = ctypes.c_char_p
        version = library.covey_version().decode()
    except AttributeError:
        version = "0.1"
    if not version.startswith(want + "."):
        raise ImportError(f"{library._name} is covey {version}; this package was made from the header of {want}")
    for name, (result, arguments) in _abi.FUNCTIONS.items():
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
    return library


lib = _load()
VERSION: str = lib.covey_version().decode()

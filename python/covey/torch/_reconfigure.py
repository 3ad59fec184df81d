# SPDX-License-Identifier: Apache-2.0
"""Groups by torch's handles: who has them, in which order, under which name."""

import hashlib
import json
import secrets
from typing import Any, Callable, Iterable

from ..group import Group, join
from ._errors import errors_of_torch
from ._options import join_ms


class Reconfigurable:
    """What a process group needs to form groups one after another.

    Attributes:
        handle: of this process, for the others: its name, and the store that it can offer
    """

    def __init__(self, store: str, settings: Callable[[int, int], dict]):
        """@settings(rank, size): those of covey.join() for a group."""
        self.handle = json.dumps({"process": secrets.token_hex(16), "store": store})
        self._settings = settings
        self._used: set = set()

    def place(self, uuid: int, handles: Iterable[str]) -> dict:
        """Settings for the group of @handles: a list gives ranks by place, a set in the order of the handles.

        Raises:
            ValueError: this process is not among them
            RuntimeError: @uuid was used before
        """
        handles = list(handles) if isinstance(handles, (list, tuple)) else sorted(handles)
        if uuid in self._used:
            raise RuntimeError(f"reconfigure: uuid {uuid} is already used")
        if self.handle not in handles:
            raise ValueError("reconfigure: the handle of this process is not among the given ones")
        self._used.add(uuid)
        name = hashlib.sha256("\n".join(handles).encode()).hexdigest()[:24]
        return {**self._settings(handles.index(self.handle), len(handles)), "store": json.loads(handles[0])["store"],
                "group": f"reconfigure-{name}-{uuid}", "create": "first", "world": len(handles)}

    def join(self, settings: dict, timeout: Any) -> Group:
        """@timeout: seconds, or None."""
        with errors_of_torch():
            return join(**{**settings, **join_ms(timeout)})

# SPDX-License-Identifier: Apache-2.0
"""What a signal may do at each place where Python hears one: after a call, at the start of a function, at a jump back.

A trace function acts at the N-th such place of covey's files in the caller's thread, for N = 0, 1, ... until the call
ends before: so every place is tried, and a failure comes again.
"""

import dis
import sys
from collections import Counter
from functools import lru_cache
from pathlib import Path

import pytest

import covey
from covey import _abi
from covey._library import lib

HERE = str(Path(covey.__file__).parent)
needs_places = pytest.mark.skipif(sys.version_info < (3, 11), reason="dis knows of handlers from Python 3.11 on")


@lru_cache(maxsize=None)
def _code(code):
    """Offsets of instructions after which signals are heard; the handler of each offset."""
    hears = {i.offset for i in dis.get_instructions(code)
             if i.opname.startswith("CALL") or i.opname in ("RESUME", "JUMP_BACKWARD")}
    table = dis._parse_exception_table(code)
    return hears, lambda at: next((entry.target for entry in table if entry.start <= at < entry.end), None)


def _run(call, n, act):
    """Runs @call() and act() at place @n. False: it has fewer places."""
    left = [n + 1]

    def of_frame(frame):
        hears, handler = _code(frame.f_code)
        last = [None]

        def local(frame, event, arg):
            frame.f_trace_opcodes = True
            if event == "opcode":
                before, last[0] = last[0], frame.f_lasti
                # A real one comes within the instruction before, so both must have the same handler.
                if before in hears and handler(before) == handler(frame.f_lasti):
                    left[0] -= 1
                    if not left[0]:
                        act()
            return local

        return local

    def enter(frame, event, arg):
        if not left[0] or not frame.f_code.co_filename.startswith(HERE) or frame.f_code.co_name == "__del__":
            return None  # Python ignores an exception that comes when a finalizer begins
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        return of_frame(frame)

    before = sys.gettrace()
    sys.settrace(enter)
    try:
        call()
    finally:
        sys.settrace(before)
    return not left[0]


def interrupt():
    raise KeyboardInterrupt


def everywhere(call, after=lambda: None, act=interrupt, ends=KeyboardInterrupt):
    """Runs call(), with act() at one place more each time, and after() behind each. How many places there are."""
    n = 0
    while True:
        try:
            came = _run(call, n, act)
        except ends:
            came = True
        after()
        if not came:
            return n
        n += 1


class Owned:
    """Counts what the library has made and not freed: works, handles for dispatch and combine, groups."""

    ENDS = {"covey_work_free": "work", "covey_ep_destroy": "ep", "covey_close": "group"}

    def __init__(self, group=None):
        """@group: was made before."""
        self.live, self.wrong = {group._handle.value: "group"} if group else {}, []
        for name in _abi.FUNCTIONS:
            kind = {"covey_ep_create": "ep", "covey_join_start": "group"}.get(name)
            if name.endswith("_start") and name not in ("covey_join_start", "covey_group_start"):
                kind = "work"
            if name in ("covey_recover", "covey_extend", "covey_retire", "covey_evict"):
                kind = "work"
            if kind:
                setattr(lib, name, self._making(getattr(lib, name), kind))
        for name, kind in self.ENDS.items():
            setattr(lib, name, self._ending(getattr(lib, name), kind))

    def _making(self, function, kind):
        def make(*arguments):
            code = function(*arguments)
            if not code:
                self.live[arguments[-1]._obj.value] = kind
            return code

        return make

    def _ending(self, function, kind):
        def end(handle):
            if handle and self.live.pop(handle.value, None) != kind:
                self.wrong.append(f"{kind} freed twice, or never made")
            return function(handle)

        return end

    def count(self, kind):
        assert not self.wrong, self.wrong
        return Counter(self.live.values())[kind]

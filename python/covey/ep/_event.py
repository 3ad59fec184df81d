# SPDX-License-Identifier: Apache-2.0
"""Events of a stream, as the buffers of other libraries give them. On host memory a call has ended when it returns."""

from typing import Any, Callable, Optional, Tuple

import torch


class EventHandle:
    """A point of the current stream. Without a device there is no stream, and nothing to wait for."""

    def __init__(self, stream: Any = None):
        self._event = None
        if stream is not None or torch.cuda.is_available():
            self._event = torch.cuda.Event()
            self._event.record(stream or torch.cuda.current_stream())

    def current_stream_wait(self) -> None:
        if self._event is not None:
            torch.cuda.current_stream().wait_event(self._event)

    def synchronize(self) -> None:
        """The host waits for it."""
        if self._event is not None:
            self._event.synchronize()

    def before(self, stream: Any) -> None:
        """@stream waits for it."""
        if self._event is not None:
            stream.wait_event(self._event)


class EventOverlap:
    """An event that code may wait for at the end of a `with`.

    Attributes:
        event: EventHandle; None: the call was not asked for one
        extra_tensors: kept alive as long as this object
    """

    def __init__(self, event: Optional[EventHandle] = None, extra_tensors: Optional[Tuple[torch.Tensor, ...]] = None):
        self.event, self.extra_tensors = event, extra_tensors
        self.hook_after_wait: Optional[Callable] = None
        self._releases = False

    def current_stream_wait(self, release_handle: bool = False) -> None:
        """The current stream waits for the event; the host does not."""
        if self.event is None:
            raise RuntimeError("there is no event: the call was made without async_finish or async_with_compute_stream")
        self.event.current_stream_wait()
        hook, self.hook_after_wait = self.hook_after_wait, None
        if hook:
            hook()
        if release_handle:
            self.event = self.extra_tensors = None

    def register_hook_after_wait(self, hook_after_wait: Callable) -> None:
        """@hook_after_wait() is called once, after current_stream_wait()."""
        if self.hook_after_wait is not None:
            raise RuntimeError("a hook is there already: an event has one")
        self.hook_after_wait = hook_after_wait

    def __call__(self, release_handle: bool = False) -> "EventOverlap":
        self._releases = release_handle
        return self

    def __enter__(self) -> "EventOverlap":
        return self

    def __exit__(self, *error: Any) -> None:
        if self.event is not None:
            self.current_stream_wait(self._releases)
        self._releases = False


def refuse(call: str, more: dict, reasons: Optional[dict] = None) -> None:
    """Keywords that covey does not know, or cannot do, are taken if they are None, False or 0.

    Args:
        reasons: what to do instead, by keyword
    """
    for name, value in more.items():
        if value is None or isinstance(value, int) and not value:
            continue
        reason = (reasons or {}).get(name, "leave it out, or give None or False")
        raise TypeError(f"{call}: covey has no {name}={_short(value)}: {reason}")


def _short(value: Any) -> str:
    return f"a tensor of {tuple(value.shape)}" if isinstance(value, torch.Tensor) else repr(value)

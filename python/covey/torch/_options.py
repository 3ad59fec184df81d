# SPDX-License-Identifier: Apache-2.0
"""What a process group is made with: `pg_options` of torch.distributed."""

from dataclasses import dataclass, field
from typing import Any, Dict, Optional


def join_ms(timeout: Optional[float]) -> dict:
    """The setting of covey.join() for torch's timeout, in seconds."""
    return {"join_ms": min(max(1, int(timeout * 1000)), 2**31 - 1)} if timeout else {}


@dataclass
class Options:
    """Options of the process group "covey".

    Attributes:
        on_loss: "fail": an operation that lacks a rank of the last admit() raises PeerError on all survivors;
            "continue": it has fewer contributors
        is_extension: this process joins a group that others formed: a replacement, or a new rank
        max_ranks: the most ranks that the group may ever have; None: those of the environment, at least the world's
        device: "auto": the current CUDA device if there is one, "local": that of LOCAL_RANK, "none", or a number
        group: name of the group; None: COVEY_GROUP, or a name that the first rank draws
        store: URL of the store; None: COVEY_STORE, or a server that the first rank starts
        check_every: with on_loss "fail" on devices: collectives between two looks at an outcome (docs/start/torch.md)
        settings: further fields of struct covey_config by name
    """

    on_loss: str = "fail"
    is_extension: bool = False
    max_ranks: Optional[int] = None
    device: str = "auto"
    group: Optional[str] = None
    store: Optional[str] = None
    check_every: int = 64
    settings: Dict[str, Any] = field(default_factory=dict)

    def __post_init__(self):
        if self.on_loss not in ("fail", "continue"):
            raise ValueError(f'on_loss is "fail" or "continue", not {self.on_loss!r}')
        if str(self.device) not in ("auto", "local", "none") and not str(self.device).isdigit():
            raise ValueError(f'device is "auto", "local", "none" or a number, not {self.device!r}')
        if self.check_every < 1:
            raise ValueError(f"check_every is 1 or more, not {self.check_every}")

    @classmethod
    def of(cls, given: Any) -> "Options":
        """@given as Options; None and options of other backends: the default ones."""
        return given if isinstance(given, cls) else cls()

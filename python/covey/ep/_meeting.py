# SPDX-License-Identifier: Apache-2.0
"""Where the ranks of a buffer meet: the covey group that they form or join, by what its caller has at hand."""

import os
import secrets
from typing import Any, NamedTuple, Optional

import torch.distributed as dist

_made = 0  # buffers of this process: all ranks make theirs in the same order


class Meeting(NamedTuple):
    """A covey group. @joins: others have formed it; None: the environment says."""

    store: Optional[str]
    group: Optional[str]
    joins: Optional[bool]
    key: Optional[str] = None  # in the TCPStore where its name stands


def number() -> int:
    """Of the next buffer of this process."""
    global _made
    _made += 1
    return _made - 1


def buffers() -> int:
    """That this process has made."""
    return _made


def by_environment(n: int) -> Meeting:
    """Under ep-run, or with COVEY_STORE: a group beside that of the process."""
    return Meeting(None, f"{os.environ.get('COVEY_GROUP') or 'covey'}.ep{n}", None)


def _there(key: str) -> str:
    """The key that says that @key is there, for those who wait."""
    return f"{key}/there"


def by_store(store: Any, rank: int, ranks: set, n: int) -> Meeting:
    """By torch's store, which all ranks can reach. The lowest of @ranks draws a name, unless one is there already."""
    from ..torch._register import _own_store

    key = f"covey/ep{n}"
    if rank == min(ranks):
        if not store.check([key]):
            url = os.environ.get("COVEY_STORE") or _own_store(len(ranks))
            store.compare_set(key, "", f"ep-{secrets.token_hex(8)} {url} {max(ranks) + 1} forming")
        store.set(_there(key), "1")  # in some of torch's stores compare_set() wakes nobody who waits
    store.wait([_there(key)])
    name, url, world, state = store.get(key).decode().split(" ")
    return Meeting(url, name, state == "formed" or rank >= int(world), key)


def tell(meeting: Meeting, store: Any, world: int) -> None:
    """Ranks that look into @store from here on join the group: all founders have looked before."""
    store.set(meeting.key, f"{meeting.group} {meeting.store} {world} formed")
    store.set(_there(meeting.key), "1")


def by_group(group: Any, n: int) -> Meeting:
    """By a process group of torch: that of covey has a place for it, through any other rank 0 tells the others."""
    from ..torch._process_group import ProcessGroup
    from ..torch._register import _own_store, _short

    if isinstance(group, ProcessGroup) and group.where:
        where, extends = group.where, group.options_of_covey.is_extension
        return Meeting(where["store"], _short(f"{where['group']}.ep{n}"), True if extends else False)
    told = [None]
    if group.rank() == 0:
        url = os.environ.get("COVEY_STORE") or _own_store(group.size())
        told = [(url, f"ep-{secrets.token_hex(8)}")]
    dist.broadcast_object_list(told, dist.get_global_rank(group, 0), group)
    return Meeting(*told[0], False)


def by_mpi(comm: Any) -> Meeting:
    """By a communicator of mpi4py."""
    from ..torch._register import _own_store

    told = None
    if comm.Get_rank() == 0:
        told = os.environ.get("COVEY_STORE") or _own_store(comm.Get_size()), f"ep-{secrets.token_hex(8)}"
    return Meeting(*comm.bcast(told, 0), False)

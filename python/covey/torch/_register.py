# SPDX-License-Identifier: Apache-2.0
"""How a process group begins: its name, its store, its device, and how torch finds it."""

import copy
import functools
import os
import secrets
import socket
import sys
import threading
import time
import weakref
from typing import Any, Callable, Optional

import torch
import torch.distributed as dist

from .. import _abi
from ..group import Group, join
from ..store import Server
from ._errors import errors_of_torch
from ._options import Options, join_ms
from ._process_group import ProcessGroup
from ._reconfigure import Reconfigurable

_once = threading.Lock()
_registered = False
_known: dict = {}  # store and name of the first group of this process, for those after it
_joined: Optional[Group] = None  # by covey://, for the process group that torch makes next
_first: Any = lambda: None  # the process group whose options hold for groups that are made without any, weakly
_asked: Optional[Options] = None  # options for covey://, which torch gives to _create() alone
_server: Optional[Server] = None


def register() -> None:
    """Makes "covey" a backend of torch.distributed; more than once is fine."""
    global _registered
    with _once:
        if not _registered:
            register_backend("covey", _create)
            dist.register_rendezvous_handler("covey", _rendezvous)
            handlers = sys.modules["torch.distributed.rendezvous"]._rendezvous_handlers
            handlers["env"] = _unless_it_joins(handlers["env"])
            dist.distributed_c10d._tensor_to_object = _holes_are_none(dist.distributed_c10d._tensor_to_object)
            _registered = True


def _holes_are_none(to_object: Callable) -> Callable:
    """In object collectives of covey the object of a lost rank is None. Its block is zero, and no pickle begins so."""

    @functools.wraps(to_object)
    def run(tensor: torch.Tensor, size: Any, group: Any = None, *rest: Any, **more: Any) -> Any:
        if isinstance(group or dist.group.WORLD, ProcessGroup) and not (int(size) and int(tensor[0])):
            return None
        return to_object(tensor, size, group, *rest, **more)

    return run


def register_backend(name: str, create: Callable, on_devices: bool = True) -> None:
    """@create(opts, given) makes the process groups of backend @name.

    It is registered for devices where there are any: torch takes the last kind of device that it is registered for.
    """
    kinds = ["cpu", "cuda"] if on_devices and torch.cuda.device_count() else ["cpu"]
    dist.Backend.register_backend(name, create, extended_api=True, devices=kinds)


def init_process_group(**options: Any) -> ProcessGroup:
    """torch.distributed.init_process_group("covey") where the launcher is covey's, MPI's or Slurm's.

    Args:
        options: as of Options; under torchrun, torch's own call does the same
    """
    global _asked
    _asked = asked = Options(**options)
    dist.init_process_group("covey", init_method="covey://", pg_options=asked)
    return dist.group.WORLD


def _address() -> str:
    """An address of this machine that peers reach."""
    try:
        return socket.gethostbyname(socket.gethostname())
    except OSError:
        return "127.0.0.1"


def _own_store(size: int) -> str:
    """A server of this process. If all ranks are on this host, it needs no port."""
    global _server
    if _server is None:
        _server = Server(None if int(os.environ.get("LOCAL_WORLD_SIZE", "0")) == size else _address())
    return _server.url


def _settle_device(options: Options) -> None:
    """"auto" and "local" become a number, or "none"."""
    options.device = str(options.device)
    if options.device == "local":
        options.device = os.environ.get("LOCAL_RANK", "0")
    if options.device == "auto":
        options.device = str(torch.cuda.current_device()) if torch.cuda.is_available() else "none"


def _meet(opts: Any, options: Options) -> dict:
    """Name and store of the group, alike on all its ranks: from the options, the environment, or the first rank."""
    name = options.group or (os.environ.get("COVEY_GROUP") if not _known else None)
    url = options.store or os.environ.get("COVEY_STORE")
    if _known and not options.group:  # another group of this job
        return {"store": options.store or _known["store"], "group": _short(f"{_known['group']}.{opts.group_id}")}
    if not (name and url):
        if opts.group_rank == 0 and not options.is_extension:
            url = url or _own_store(opts.group_size)
            name = name or f"torch-{secrets.token_hex(8)}"
            opts.store.set("covey", f"{name} {url}")
            _tell(opts, name, url)
        told = opts.store.get("covey") if options.is_extension or not opts.group_rank else _hear(opts)
        name, url = told.decode().split(" ", 1)
    return {"store": url, "group": name}


def _tell(opts: Any, name: str, url: str) -> None:
    """Rank 0 tells the other founders, each of which asks with a word of its own.

    A launcher may keep one store over rounds of processes: what stands there may be of a round before, on either side.
    """
    store, missing, answered = opts.store, set(range(1, opts.group_size)), {}
    until = time.monotonic() + (opts.timeout.total_seconds() if opts.timeout else 1800)
    while missing:
        for rank in sorted(missing):
            asks, took = f"covey-asks-{rank}", f"covey-took-{rank}-{name}"
            if store.check([took]):
                missing.discard(rank)
            elif store.check([asks]) and answered.get(rank) != store.get(asks):
                answered[rank] = store.get(asks)
                store.set(f"covey-{answered[rank].decode()}", f"{name} {url}")
        if missing and time.monotonic() > until:
            raise TimeoutError(f"ranks {sorted(missing)} did not come to the process group")
        if missing:
            time.sleep(0.005)


def _hear(opts: Any) -> bytes:
    word = secrets.token_hex(8)
    opts.store.set(f"covey-asks-{opts.group_rank}", word)
    text = opts.store.get(f"covey-{word}")
    opts.store.set(f"covey-took-{opts.group_rank}-{text.decode().split()[0]}", "1")
    return text


def _short(name: str) -> str:
    """A name that covey takes: at most 64 letters, digits, '.', '_' and '-'."""
    name = "".join(c if c.isalnum() or c in "._-" else "-" for c in name)
    if len(name) <= 64:
        return name
    import hashlib

    return name[:31] + "." + hashlib.sha256(name.encode()).hexdigest()[:32]


def _settings(options: Options, rank: Optional[int], size: int, timeout: Optional[float]) -> dict:
    """Those of covey.join(). The device of @options is settled. @timeout: torch's, in seconds."""
    limit = {} if os.environ.get("COVEY_JOIN_MS") else join_ms(timeout)
    settings = {**limit, **options.settings, "rank": rank, "device": options.device}
    if options.max_ranks or not os.environ.get("COVEY_MAX_RANKS"):
        settings["max_ranks"] = options.max_ranks or max(64, size)
    if settings["device"] == "none":
        settings["device"] = None
    if options.is_extension:
        settings["create"] = _abi.Create.NEVER
    else:
        settings["world"] = size
    return settings


def _create(opts: Any, given: Any = None, kind: type = ProcessGroup) -> ProcessGroup:
    """Called by torch on each rank of the new group; @kind is the class of what it gets."""
    global _joined, _first
    options = copy.copy(Options.of(given) if given is not None else _inherited())
    _settle_device(options)
    timeout = opts.timeout.total_seconds() if opts.timeout is not None else None
    if getattr(opts, "enable_reconfigure", False):
        url = _meet(opts, options)["store"]
        later = Reconfigurable(url, lambda rank, size: _settings(options, rank, size, timeout))
        return kind(None, timeout, options, opts.store, later)
    group, _joined = _joined, None
    where = dict(_known)
    if group is not None:
        options.is_extension = group.rank not in group.view().members
    else:
        where = _meet(opts, options)
        with errors_of_torch():
            group = join(**_settings(options, opts.group_rank, opts.group_size, timeout), **where)
        if not _known:
            _known.update(where)
    farewell = None
    if not options.store and not os.environ.get("COVEY_STORE"):
        if not options.is_extension:
            _all_in(opts.store, where.get("group", ""), group, timeout)
        farewell = lambda members: _farewell(opts.store, where.get("group", ""), members)
    made = kind(group, timeout, options, opts.store, farewell=farewell, make=_make)
    made.where = where
    if not _alive(_first()):
        _first = weakref.ref(made)
    return made


def _alive(group: Optional[ProcessGroup]) -> bool:
    return bool(group and group.covey and group.covey._handle)


def _inherited() -> Options:
    """The options of the first group of this process, but for what is that group's own."""
    if not _alive(_first()):
        return Options()
    options = copy.copy(_first().options)
    options.group, options.is_extension = None, False
    return options


def _make(options: Options, rank: int, size: int, name: str, timeout: Optional[float]) -> Group:
    """Another group of this job."""
    where = {"store": options.store or _known["store"], "group": _short(f"{_known['group']}.{name}")}
    with errors_of_torch():
        return join(**_settings(options, rank, size, timeout), **where)


def _all_in(store: Any, name: str, group: Group, timeout: Optional[float]) -> None:
    """The process with the store's server goes on when the others are in: it may end at once, and the server with it."""
    until, key = time.monotonic() + (timeout or 1800), f"covey-in-{name}"
    try:
        came = store.add(key, 1)
        while _server and came < len(group.view().members) and time.monotonic() < until:
            time.sleep(0.001)
            came = store.add(key, 0)
    except RuntimeError:  # torch's store has ended
        pass


def _farewell(store: Any, name: str, members: int) -> None:
    """The process with the store's server stays until the others have left, or for 5 seconds."""
    until, key = time.monotonic() + 5, f"covey-left-{name}"
    try:
        left = store.add(key, 1)
        while _server and left < members and time.monotonic() < until:
            time.sleep(0.01)
            left = store.add(key, 0)
    except RuntimeError:  # torch's store has ended before
        pass


def _rendezvous(url: str, timeout: Any = None, **unused: Any):
    """covey://: rank and size are the launcher's, and the members agree through covey on torch's store."""
    global _asked, _joined
    options, _asked = _asked or Options(), None
    _settle_device(options)
    seconds = timeout.total_seconds() if timeout is not None else None
    settings = {**_settings(options, None, 0, seconds), "world": None, "store": options.store, "group": options.group}
    with errors_of_torch():
        group = join(**settings)
    joins = group.rank not in group.view().members
    _known.update(store=options.store or os.environ.get("COVEY_STORE"),
                  group=options.group or os.environ.get("COVEY_GROUP", "covey"))
    _joined = group
    yield dist.HashStore() if joins else _store_of(group), group.rank, group.size


def _unless_it_joins(handler: Callable) -> Callable:
    """env://, but that a replacement meets nobody there: the founders' store was rank 0's, and may have ended with it."""

    @functools.wraps(handler)
    def run(url: str, *rest: Any, **more: Any):
        if os.environ.get("COVEY_CREATE") == "never" and os.environ.get("COVEY_STORE"):
            yield dist.HashStore(), int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        else:
            yield from handler(url, *rest, **more)

    return run


def _store_of(group: Group):
    """A TCPStore of rank 0, whose address is broadcast."""
    import numpy as np

    place = np.zeros(128, np.uint8)
    store = None
    if group.rank == 0:
        store = dist.TCPStore(_address(), 0, group.size, True, wait_for_workers=False)
        text = f"{_address()} {store.port}".encode()
        place[: len(text)] = list(text)
    group.broadcast(place, 0)
    if store is None:
        host, port = bytes(place).rstrip(b"\0").decode().split()
        store = dist.TCPStore(host, int(port), group.size, False)
    return store

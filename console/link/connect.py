"""Opens one SSH connection: the user's SSH configuration, strict host keys, and a verdict on what went wrong."""

from __future__ import annotations

import asyncio
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import asyncssh

from console.link.errors import LinkDown, LinkRefused, one_line

KEEPALIVE_S = 3.0
KEEPALIVE_INTERVALS = 3  # a server silent for so many intervals is lost
CONNECT_TIMEOUT_S = 20.0
OPENING_TIMEOUT_S = 60.0  # all of it: jump hosts, key exchange, authentication
ANY_NEW_KEY = "new"

_SYSTEM_KNOWN_HOSTS = Path("/etc/ssh/ssh_known_hosts")
_REFUSALS = (
    asyncssh.PermissionDenied,
    asyncssh.KeyExchangeFailed,
    asyncssh.IllegalUserName,
    asyncssh.ProtocolNotSupported,
)


@dataclass(frozen=True)
class Endpoint:
    """Where the container's SSH server is. What is None or empty is taken from the SSH configuration."""

    host: str  # a name, an address, or an alias of ~/.ssh/config
    port: int | None = None
    user: str | None = None
    identity_files: tuple[Path, ...] = ()
    known_hosts: Path | None = None
    ssh_config: tuple[Path, ...] | None = None  # None: ~/.ssh/config; empty: no file at all


@dataclass(frozen=True)
class Connection:
    """An authenticated connection; ``lost`` is done when it ends, with the reason in words."""

    ssh: asyncssh.SSHClientConnection
    lost: asyncio.Future[str]


async def open_connection(endpoint: Endpoint, accept: str = "") -> Connection:
    """Connect and authenticate, never asking anybody anything.

    ``accept``: a host key that is not known yet is recorded if it is this fingerprint (``SHA256:…``), or any if
    ``ANY_NEW_KEY``. Raises ``LinkDown`` where trying again can help and ``LinkRefused`` where it cannot.
    """
    owner: _Owner | None = None
    try:
        async with asyncio.timeout(OPENING_TIMEOUT_S):
            arguments = _arguments(endpoint)
            options = await asyncssh.SSHClientConnectionOptions.construct(None, **arguments)
            files = _known_hosts_files(endpoint, options.known_hosts)
            known = read_known_hosts(files)
            owner = _Owner(known, files[0], accept)
            ssh = await asyncssh.connect(**arguments, known_hosts=known, client_factory=lambda: owner)
    except (TimeoutError, asyncssh.Error, OSError, ValueError) as error:
        if owner is not None and owner.refusal is not None:
            raise owner.refusal from None
        raise _verdict(endpoint, error) from None
    try:
        owner.record_accepted_key()
    except OSError as error:
        ssh.abort()
        raise LinkRefused(f"cannot record the host key in {owner.file}: {error.strerror}") from None
    return Connection(ssh, owner.lost)


def _arguments(endpoint: Endpoint) -> dict[str, Any]:
    """What asyncssh is told; an empty tuple means: as the SSH configuration says."""
    config: object = ()
    if endpoint.ssh_config is not None:
        config = [str(path) for path in endpoint.ssh_config] or None
    return {
        "config": config,
        "host": endpoint.host,
        "port": endpoint.port if endpoint.port is not None else (),
        "username": endpoint.user if endpoint.user is not None else (),
        "client_keys": [str(path.expanduser()) for path in endpoint.identity_files] or (),
        "ignore_encrypted": True,  # such a key is usable through the SSH agent only
        "connect_timeout": CONNECT_TIMEOUT_S,
        "login_timeout": OPENING_TIMEOUT_S,
        "keepalive_interval": KEEPALIVE_S,
        # The count is of unanswered requests, and the first is sent after one silent interval.
        "keepalive_count_max": KEEPALIVE_INTERVALS - 1,
        "agent_forwarding": False,
        "x11_forwarding": False,
    }


def _known_hosts_files(endpoint: Endpoint, configured: object) -> list[Path]:
    """The files host keys are looked up in; a newly accepted key goes to the first."""
    if endpoint.known_hosts is not None:
        return [endpoint.known_hosts.expanduser()]
    if isinstance(configured, list) and configured:
        return [Path(str(name)).expanduser() for name in configured]
    return [Path("~/.ssh/known_hosts").expanduser(), _SYSTEM_KNOWN_HOSTS]


def read_known_hosts(files: list[Path]) -> asyncssh.SSHKnownHosts:
    """The entries of all ``files`` that exist; a line that cannot be read is passed over, as ssh does."""
    known = asyncssh.import_known_hosts("")
    for file in files:
        if not file.is_file():
            continue
        for line in file.read_text(errors="replace").splitlines():
            try:
                known.load(line)
            except ValueError:
                continue
    return known


def known_hosts_name(host: str, port: int) -> str:
    """The name under which known_hosts files list a host."""
    return host if port == 22 else f"[{host}]:{port}"


class _Owner(asyncssh.SSHClient):
    """asyncssh's callbacks for one connection: decides on host keys and hears of the end."""

    def __init__(self, known: asyncssh.SSHKnownHosts, file: Path, accept: str) -> None:
        self._known = known
        self.file = file
        self._accept = accept
        self._accepted_line = ""
        self.refusal: LinkRefused | None = None
        self.lost: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    def validate_host_public_key(self, host: str, _addr: str, port: int, key: asyncssh.SSHKey) -> bool:
        """Asked only about a key that is not among the known ones of this host."""
        name = known_hosts_name(host, port)
        offered = f"{key.get_algorithm()} {key.get_fingerprint()}"
        before = self._known.match(name, "", None)[0]
        if before:
            old = ", ".join(f"{one.get_algorithm()} {one.get_fingerprint()}" for one in before)
            self.refusal = LinkRefused(
                f"the host key of {name} has changed: known is {old}, offered is {offered}. "
                f"If the host was set up anew, run: ssh-keygen -R '{name}' -f '{self.file}', then try again; "
                "if not, somebody may be in between"
            )
            return False
        if self._accept in (ANY_NEW_KEY, key.get_fingerprint()):
            self._accepted_line = f"{name} {key.export_public_key().decode().strip()}\n"
            return True
        self.refusal = LinkRefused(
            f"the host key of {name} is not known yet: {offered}. "
            "If the host's own fingerprint is the same, accept it once (--accept-new-host-key)",
            key.get_fingerprint(),
        )
        return False

    def record_accepted_key(self) -> None:
        """Append the key accepted just now, if any. Called when the server has proved that it holds the key."""
        if not self._accepted_line:
            return
        self.file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        handle = os.open(self.file, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o600)
        with os.fdopen(handle, "r+b") as file:
            if file.seek(0, os.SEEK_END) > 0:
                file.seek(-1, os.SEEK_END)
                if file.read(1) != b"\n":
                    file.write(b"\n")
            file.write(self._accepted_line.encode())

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.lost.done():
            self.lost.set_result(one_line(str(exc)) if exc else "the server closed the connection")


def _verdict(endpoint: Endpoint, error: Exception) -> LinkDown | LinkRefused:
    """Whether trying again can help, and one line on what happened."""
    where = endpoint.host if endpoint.port is None else f"{endpoint.host}:{endpoint.port}"
    text = one_line(str(error)) or type(error).__name__
    if isinstance(error, TimeoutError):
        return LinkDown(f"{where} did not answer in time")
    if isinstance(error, asyncssh.PermissionDenied) or "authentication failures" in text:
        return LinkRefused(
            f"{where} refused the login ({text}): check user and key; a key with a passphrase must be in the SSH agent "
            "(ssh-add); then try again"
        )
    if isinstance(error, asyncssh.HostKeyNotVerifiable):
        return LinkRefused(f"{text}: connect to it once with ssh to check and record its key, then try again")
    if isinstance(error, asyncssh.KeyExchangeFailed):
        return LinkRefused(
            f"{where}: {text}. A host whose known key is of another type also looks like this; try again"
        )
    if isinstance(error, (*_REFUSALS, ValueError)):
        return LinkRefused(f"{where}: {text}. Correct that (SSH configuration, key files), then try again")
    if isinstance(error, OSError) and error.filename is not None:
        return LinkRefused(f"cannot read {error.filename}: {error.strerror}. Correct that, then try again")
    return LinkDown(f"cannot reach {where}: {text}")

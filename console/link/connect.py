"""Opens one SSH connection: the user's SSH configuration, strict host keys, and a verdict on what went wrong."""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import asyncssh
from asyncssh.constants import OPEN_ADMINISTRATIVELY_PROHIBITED

from console.link.errors import LinkDown, LinkRefused, one_line
from console.link.hostkeys import HostKeys, files_of, name_of
from console.link.userkeys import identities

KEEPALIVE_S: Final = 3.0
KEEPALIVE_INTERVALS: Final = 3  # a server silent for so many intervals is lost
CONNECT_TIMEOUT_S: Final = 20.0
OPENING_TIMEOUT_S: Final = 60.0  # all of it: jump hosts, key exchange, authentication
CLOSING_TIMEOUT_S: Final = 1.0

_REFUSALS: Final = (
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
    ssh_config: tuple[Path, ...] | None = None  # None: ~/.ssh/config, where there is one; empty: no file at all

    @property
    def where(self) -> str:
        return self.host if self.port is None else f"{self.host}:{self.port}"


@dataclass(frozen=True)
class Connection:
    """An authenticated connection; ``lost`` is done when it ends, with the reason in words."""

    ssh: asyncssh.SSHClientConnection
    lost: asyncio.Future[str]
    jump: Connection | None = None  # the one it goes through

    async def close(self) -> None:
        """Close politely, but do not wait for a peer that is gone."""
        self.ssh.close()
        try:
            async with asyncio.timeout(CLOSING_TIMEOUT_S):
                await self.ssh.wait_closed()
        except (TimeoutError, asyncssh.Error, OSError):
            self.ssh.abort()
        if self.jump is not None:
            await self.jump.close()


async def open_connection(endpoint: Endpoint, accept: str = "") -> Connection:
    """Connect and authenticate, through jump hosts where the SSH configuration says so; never asks anybody anything.

    ``accept``: a host key that is not known yet is recorded if it is this fingerprint (``SHA256:…``), or any if
    ``ANY_NEW_KEY``. Raises ``LinkDown`` where trying again can help and ``LinkRefused`` where it cannot.
    """
    try:
        async with asyncio.timeout(OPENING_TIMEOUT_S):
            return await _open(endpoint, accept, None, ())
    except TimeoutError:
        raise LinkDown(f"{endpoint.where} did not answer in time") from None


async def _open(endpoint: Endpoint, accept: str, jump: Connection | None, behind: tuple[Endpoint, ...]) -> Connection:
    """One connection. ``jump``: what it goes through. ``behind``: the hosts that are reached through this one."""
    keys: HostKeys | None = None
    async with contextlib.AsyncExitStack() as undo:
        try:
            arguments = _arguments(endpoint)
            # Without keys: asyncssh would stop at one that is listed but not there.
            looking = {**arguments, "client_keys": None, "client_certs": None}
            options = await asyncssh.SSHClientConnectionOptions.construct(None, **looking)
            if jump is None and isinstance(options.tunnel, str):
                jump = await _jump(options.tunnel, endpoint, accept, behind)
                undo.push_async_callback(jump.close)
            lookup = options.config.get
            if not endpoint.identity_files:
                arguments |= await asyncio.to_thread(identities, lookup)
            files = files_of(endpoint.known_hosts, lookup("UserKnownHostsFile"), lookup("GlobalKnownHostsFile"))
            keys = HostKeys(options.host_key_alias or name_of(options.host, options.port), files, accept)
            if not lookup("HostKeyAlgorithms"):
                name = options.host_key_alias or options.host
                arguments["server_host_key_algs"] = keys.algorithms(name, options.port)
            if jump is not None:
                arguments["tunnel"] = jump.ssh
            owner = _Owner(keys)
            ssh = await asyncssh.connect(**arguments, known_hosts=keys.known, client_factory=lambda: owner)
            undo.callback(ssh.abort)
        except (LinkDown, LinkRefused):  # of a jump host
            raise
        except Exception as error:  # what asyncssh raises by mistake is told too; else nothing would try again
            if keys is not None and keys.refusal is not None:
                raise keys.refusal from None
            raise _verdict(endpoint, error) from None
        keys.record()
        undo.pop_all()
        return Connection(ssh, owner.lost, jump)


async def _jump(hops: str, target: Endpoint, accept: str, behind: tuple[Endpoint, ...]) -> Connection:
    """A connection to the last of the jump hosts, each reached through the one before and checked like any host."""
    connection: Connection | None = None
    async with contextlib.AsyncExitStack() as undo:
        for text in hops.split(","):
            hop = replace(_hop(text.strip()), known_hosts=target.known_hosts, ssh_config=target.ssh_config)
            if hop in behind:
                raise LinkRefused(f"{hop.where} is to be reached through itself: correct ProxyJump, then try again")
            connection = await _open(hop, accept, connection, (*behind, hop))
            undo.push_async_callback(connection.close)
        undo.pop_all()
    assert connection is not None
    return connection


def _hop(text: str) -> Endpoint:
    """``[user@]host[:port]``, also as a URI, as ssh_config has it."""
    user, _, place = text.removeprefix("ssh://").rpartition("@")
    host, colon, port = place.rpartition(":")
    if not colon or not port.isdigit():
        host, port = place, ""
    return Endpoint(host.strip("[]"), int(port) if port else None, user or None)


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


class _Owner(asyncssh.SSHClient):
    """asyncssh's callbacks for one connection: decides on host keys and hears of the end."""

    def __init__(self, keys: HostKeys) -> None:
        self._keys = keys
        self.lost: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    def validate_host_public_key(self, _host: str, _addr: str, _port: int, key: asyncssh.SSHKey) -> bool:
        """Asked only about a key that is not among the known ones of this host."""
        return self._keys.judge(key)

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.lost.done():
            self.lost.set_result(one_line(str(exc)) if exc else "the server closed the connection")


def _verdict(endpoint: Endpoint, error: Exception) -> LinkDown | LinkRefused:
    """Whether trying again can help, and one line on what happened."""
    where = endpoint.where
    text = one_line(str(error)) or type(error).__name__
    if isinstance(error, TimeoutError):
        return LinkDown(f"{where} did not answer in time")
    if isinstance(error, asyncssh.PermissionDenied) or "authentication failures" in text:
        return LinkRefused(
            f"{where} refused the login ({text}): check user and key; a key with a passphrase must be in the SSH agent "
            "(ssh-add); then try again"
        )
    if isinstance(error, asyncssh.HostKeyNotVerifiable):
        if "revoked" in text:
            return LinkRefused(f"{text}: known_hosts says that it must not be trusted any more (@revoked)")
        return LinkRefused(f"{text}. The host needs a certificate that is valid for its name; then try again")
    if isinstance(error, asyncssh.ChannelOpenError) and error.code == OPEN_ADMINISTRATIVELY_PROHIBITED:
        return LinkRefused(f"the jump host passes nothing on to {where}: {text}. Correct that, then try again")
    if isinstance(error, (*_REFUSALS, ValueError)):
        return LinkRefused(f"{where}: {text}. Correct that (SSH configuration, key files), then try again")
    if isinstance(error, OSError) and error.filename is not None:
        return LinkRefused(f"cannot read {error.filename}: {error.strerror}. Correct that, then try again")
    if isinstance(error, (OSError, asyncssh.Error)):
        return LinkDown(f"cannot reach {where}: {text}")
    return LinkRefused(f"{where}: unexpected {type(error).__name__}: {text}. Try again; if it comes again, report it")

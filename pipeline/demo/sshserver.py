"""An SSH server for one user and one key, on the loopback interface: what the demo has in place of a GPU container's.

Commands run through ``/bin/sh -c`` in a session of their own with the environment a fresh OpenSSH session has, and
nothing of the server's own. As with OpenSSH, what detaches itself from a session outlives it, and the server too.
"""

from __future__ import annotations

import asyncio
import os
import pwd
import signal
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import asyncssh

_CHUNK = 65536
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


@dataclass(frozen=True)
class Keys:
    """The files of one loopback container, all in its folder."""

    host_key: Path
    user_key: Path
    known_hosts: Path


def make_keys(folder: Path) -> Keys:
    """Make what is missing; existing keys stay, so that a container keeps its identity when it is started again."""
    keys = Keys(folder / "host_key", folder / "user_key", folder / "known_hosts")
    for path in (keys.host_key, keys.user_key):
        if not path.exists():
            key = asyncssh.generate_private_key("ssh-ed25519", comment="draftdeck demo")
            handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            with os.fdopen(handle, "wb") as file:
                file.write(key.export_private_key())
    return keys


def user_name() -> str:
    """The account that the server and everything in it runs as."""
    return pwd.getpwuid(os.getuid()).pw_name


async def listen(keys: Keys, port: int) -> asyncssh.SSHAcceptor:
    """Serve on 127.0.0.1; ``port`` 0 takes a free one. Writes the known_hosts file."""
    host_key = asyncssh.read_private_key(keys.host_key)
    allowed = asyncssh.read_private_key(keys.user_key).convert_to_public()
    acceptor = await asyncssh.listen(
        "127.0.0.1",
        port,
        server_host_keys=[host_key],
        server_factory=lambda: _OneUser(allowed),
        process_factory=_run,
        sftp_factory=True,
        encoding=None,
        allow_pty=False,
        agent_forwarding=False,
        reuse_address=True,
        config=None,
    )
    line = f"[127.0.0.1]:{acceptor.get_port()} {host_key.export_public_key().decode().strip()}\n"
    await asyncio.to_thread(keys.known_hosts.write_text, line)
    return acceptor


class _OneUser(asyncssh.SSHServer):
    def __init__(self, allowed: asyncssh.SSHKey) -> None:
        self._allowed = allowed

    def public_key_auth_supported(self) -> bool:
        return True

    def validate_public_key(self, username: str, key: asyncssh.SSHKey) -> bool:
        return username == user_name() and key == self._allowed


def session_environment() -> dict[str, str]:
    account = pwd.getpwuid(os.getuid())
    return {
        "HOME": account.pw_dir,
        "USER": account.pw_name,
        "LOGNAME": account.pw_name,
        "SHELL": account.pw_shell or "/bin/sh",
        "PATH": _PATH,
    }


async def _run(session: asyncssh.SSHServerProcess[bytes]) -> None:
    """One exec request, from its start to its exit status."""
    environment = session_environment()
    argv = ("/bin/sh", "-c", session.command) if session.command else ("/bin/sh",)
    # Not asyncio's subprocesses: they kill what still runs when the server ends.
    process = subprocess.Popen(  # noqa: ASYNC220
        argv,
        bufsize=0,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment,
        cwd=environment["HOME"],
        start_new_session=True,
    )
    assert process.stdin is not None and process.stdout is not None and process.stderr is not None
    ended = _end_of(process.pid)
    inward = asyncio.create_task(_inward(session, process, process.stdin))
    # Output has its end when nobody holds the pipe any more, which may be after the shell's own.
    await asyncio.gather(_outward(process.stdout, session.stdout), _outward(process.stderr, session.stderr))
    await ended
    inward.cancel()
    code = process.wait()
    if code < 0:
        session.exit_with_signal(signal.Signals(-code).name.removeprefix("SIG"))
    else:
        session.exit(code)


def _end_of(pid: int) -> asyncio.Future[None]:
    """Done when this child has ended."""
    loop = asyncio.get_running_loop()
    ended: asyncio.Future[None] = loop.create_future()
    handle = os.pidfd_open(pid)

    def seen() -> None:
        loop.remove_reader(handle)
        os.close(handle)
        if not ended.done():
            ended.set_result(None)

    loop.add_reader(handle, seen)
    return ended


async def _inward(session: asyncssh.SSHServerProcess[bytes], process: subprocess.Popen[bytes], pipe: IO[bytes]) -> None:
    """Carry input and signals to the process until the client's side of the channel ends."""
    loop = asyncio.get_running_loop()
    transport, protocol = await loop.connect_write_pipe(asyncio.streams.FlowControlMixin, pipe)
    stdin = asyncio.StreamWriter(transport, protocol, None, loop)
    try:
        while True:
            try:
                data = await session.stdin.read(_CHUNK)
            except asyncssh.SignalReceived as received:
                number = getattr(signal, f"SIG{received.signal}", None)
                if isinstance(number, signal.Signals) and process.returncode is None:
                    process.send_signal(number)
                continue
            except asyncssh.BreakReceived:
                continue
            if not data:
                break
            stdin.write(data)
            await stdin.drain()
    except (asyncssh.Error, OSError):
        pass  # either side has gone; the output shows it
    finally:
        transport.close()


async def _outward(pipe: IO[bytes], target: asyncssh.SSHWriter[bytes]) -> None:
    """Carry output until its end. When the client has gone the pipe is closed, so that a writer hears of it."""
    source = asyncio.StreamReader()
    loop = asyncio.get_running_loop()
    transport, _ = await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(source), pipe)
    try:
        while data := await source.read(_CHUNK):
            target.write(data)
            await target.drain()
    except (asyncssh.Error, OSError):
        pass
    finally:
        transport.close()

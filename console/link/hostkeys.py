"""Host keys: which are known, what an unknown or a changed one means, and how a new one is recorded."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import asyncssh

from console.link.errors import LinkRefused

ANY_NEW_KEY: Final = "new"

_SYSTEM_FILE: Final = "/etc/ssh/ssh_known_hosts"
_USER_FILE: Final = "~/.ssh/known_hosts"

_KINDS: Final = {
    "ssh-ed25519": ("ssh-ed25519",),
    "ecdsa-sha2-nistp256": ("ecdsa-sha2-nistp256",),
    "ecdsa-sha2-nistp384": ("ecdsa-sha2-nistp384",),
    "ecdsa-sha2-nistp521": ("ecdsa-sha2-nistp521",),
    "ssh-rsa": ("rsa-sha2-512", "rsa-sha2-256"),
}
"""Kinds of host keys to the signatures that are taken from them."""

_CERTIFICATE: Final = "-cert-v01@openssh.com"


class KnownHosts(asyncssh.SSHKnownHosts):
    """What the files say. As in ssh, an entry is found by a host's name alone, not by the address it has now."""

    def match(self, host: str, addr: str, port: int | None) -> Any:
        del addr
        return super().match(host, "", port)


def files_of(chosen: Path | None, configured: object, system: object) -> list[Path]:
    """The files to look in: the chosen one, else what the SSH configuration lists, else ssh's own.

    A newly accepted key goes to the first. "none" in the configuration turns no check off.
    """
    if chosen is not None:
        return [chosen.expanduser()]
    names = [*(_words(configured) or [_USER_FILE]), *(_words(system) or [_SYSTEM_FILE])]
    return [Path(name).expanduser() for name in names]


def _words(value: object) -> list[str]:
    return [str(word) for word in value] if isinstance(value, list) else []


def read(files: Sequence[Path]) -> KnownHosts:
    """The entries of all ``files`` that exist; a line that cannot be read is passed over, as ssh does."""
    known = KnownHosts()
    for file in files:
        if not file.is_file():
            continue
        for line in file.read_text(errors="replace").splitlines():
            try:
                known.load(line)
            except ValueError:
                continue
    return known


def name_of(host: str, port: int) -> str:
    """The name under which known_hosts files list a host."""
    return host if port == 22 else f"[{host}]:{port}"


class HostKeys:
    """The judgement on the key of one host that is being connected to."""

    def __init__(self, name: str, files: Sequence[Path], accept: str) -> None:
        self.name = name
        self.known = read(files)
        self.refusal: LinkRefused | None = None
        self._file = files[0]
        self._accept = accept
        self._accepted_line = ""

    def algorithms(self, host: str, port: int) -> list[str]:
        """What to ask the server for: certificates where an authority is known, the kinds of known keys first.

        Kinds that are not known come too: a host that suddenly shows another kind is to be heard, and refused.
        """
        keys, authorities, *_ = self.known.match(host, "", None if port == 22 else port)
        kinds = {key.get_algorithm() for key in keys}
        ordered = sorted(_KINDS, key=lambda kind: kind not in kinds)
        plain = [name for kind in ordered for name in _KINDS[kind]]
        return [*(f"{name}{_CERTIFICATE}" for name in plain if authorities), *plain]

    def judge(self, key: asyncssh.SSHKey) -> bool:
        """Whether to go on with a key that is not among the known ones; ``refusal`` says why not."""
        offered = f"{key.get_algorithm()} {key.get_fingerprint()}"
        before = self.known.match(self.name, "", None)[0]
        if before:
            old = ", ".join(f"{one.get_algorithm()} {one.get_fingerprint()}" for one in before)
            self.refusal = LinkRefused(
                f"the host key of {self.name} has changed: known is {old}, offered is {offered}. "
                f"If the host was set up anew, run: ssh-keygen -R '{self.name}' -f '{self._file}', then try again; "
                "if not, somebody may be in between"
            )
            return False
        if self._accept in (ANY_NEW_KEY, key.get_fingerprint()):
            self._accepted_line = f"{self.name} {key.export_public_key().decode().strip()}\n"
            return True
        self.refusal = LinkRefused(
            f"the host key of {self.name} is not known yet: {offered}. "
            "If the host's own fingerprint is the same, accept it once (--accept-new-host-key)",
            key.get_fingerprint(),
        )
        return False

    def record(self) -> None:
        """Write down the key accepted just now, if any. Called when the server has proved that it holds the key."""
        if not self._accepted_line:
            return
        try:
            self._file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            handle = os.open(self._file, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o600)
            with os.fdopen(handle, "r+b") as file:
                if file.seek(0, os.SEEK_END) > 0:
                    file.seek(-1, os.SEEK_END)
                    if file.read(1) != b"\n":
                        file.write(b"\n")
                file.write(self._accepted_line.encode())
        except OSError as error:
            raise LinkRefused(f"cannot record the host key in {self._file}: {error.strerror}") from None

"""Which keys and certificates the SSH configuration names, read as ssh reads it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any


def identities(lookup: Callable[[str], object]) -> dict[str, Any]:
    """What asyncssh is told about IdentityFile, CertificateFile and IdentitiesOnly; nothing where none is named.

    As in ssh a file that is not there is passed over, a public key stands for its private one in the SSH agent, and
    IdentitiesOnly takes those keys alone from an agent that holds many.
    """
    arguments: dict[str, Any] = {}
    if lookup("CertificateFile"):
        arguments["client_certs"] = [str(path) for path in _there(lookup("CertificateFile"))]
    if not lookup("IdentityFile"):
        return arguments
    named = _there(lookup("IdentityFile"))
    arguments["client_keys"] = [str(path) for path in named if _private(path)]
    if lookup("IdentitiesOnly"):
        beside = [path.with_name(path.name + end) for path in named for end in (".pub", "-cert.pub") if _private(path)]
        public = [path for path in named if not _private(path)] + [path for path in beside if path.is_file()]
        if public:
            arguments["agent_identities"] = [str(path) for path in public]
    return arguments


def _there(names: object) -> list[Path]:
    paths = [Path(str(name)).expanduser() for name in names] if isinstance(names, list) else []
    return [path for path in paths if path.is_file()]


def _private(path: Path) -> bool:
    return b"PRIVATE KEY" in path.read_bytes()

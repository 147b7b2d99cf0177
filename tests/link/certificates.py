"""SSH certificates, made with ssh-keygen."""

from __future__ import annotations

import subprocess
from pathlib import Path

from tests.sshd import make_key


def make_authority(path: Path) -> Path:
    make_key(path)
    return path


def sign(authority: Path, key: Path, *principals: str, host: bool = False, valid: str = "-1h:+1d") -> Path:
    """Certify ``key``; the certificate lies beside it."""
    kind = ["-h"] if host else []
    argv = ["ssh-keygen", "-q", "-s", str(authority), *kind, "-I", "test", "-n", ",".join(principals), "-V", valid]
    subprocess.run([*argv, f"{key}.pub"], check=True)
    return key.with_name(f"{key.name}-cert.pub")

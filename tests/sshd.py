"""A real OpenSSH server on a loopback port, with keys and configuration of its own.

A ``conftest.py`` that imports the fixture ``openssh_server`` makes it available beside it.
"""

from __future__ import annotations

import contextlib
import getpass
import os
import shutil
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from console.link.connect import Endpoint
from tests.waiting import free_port, wait_until

_CONFIG = """\
Port {port}
ListenAddress 127.0.0.1
HostKey {folder}/host_key
AuthorizedKeysFile {folder}/authorized_keys
PidFile none
StrictModes no
UsePAM no
PermitRootLogin prohibit-password
PasswordAuthentication no
KbdInteractiveAuthentication no
Subsystem sftp internal-sftp
# Whoever runs the tests may have start-up files in the real one.
SetEnv HOME={folder}/home
"""


def make_key(path: Path, kind: str = "ed25519") -> None:
    """A key pair without a passphrase, replacing one that is there."""
    path.unlink(missing_ok=True)
    subprocess.run(["ssh-keygen", "-q", "-t", kind, "-N", "", "-C", "test", "-f", str(path)], check=True)


class OpenSshServer:
    """``sshd -D -e`` in ``folder``. Its known_hosts file always holds the host key of its first start."""

    def __init__(self, folder: Path) -> None:
        program = shutil.which("sshd", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/local/sbin")
        assert program is not None, "no sshd: install openssh-server (apt-get install openssh-server), .ci/run does"
        if os.geteuid() == 0:
            Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)  # sshd's own empty folder, gone after a reboot
        self.folder = folder
        self.port = free_port()
        self.extra: list[str] = []  # further lines of its configuration, from the next start on
        self.user = getpass.getuser()
        self.key = folder / "user_key"
        self.known_hosts = folder / "known_hosts"
        self._program = program
        self._process: subprocess.Popen[bytes] | None = None
        (folder / "home").mkdir(parents=True, exist_ok=True)
        make_key(self.key)
        (folder / "authorized_keys").write_bytes(self.key.with_suffix(".pub").read_bytes())
        self.change_host_key()
        self.known_hosts.write_text(f"[127.0.0.1]:{self.port} {self.host_key}\n")

    @property
    def endpoint(self) -> Endpoint:
        return Endpoint("127.0.0.1", self.port, self.user, (self.key,), self.known_hosts, ssh_config=())

    @property
    def host_key(self) -> str:
        """The host key as known_hosts has it: kind and key."""
        kind, key, _ = (self.folder / "host_key.pub").read_text().split()
        return f"{kind} {key}"

    def change_host_key(self, kind: str = "ed25519") -> None:
        """Takes effect at the next start."""
        make_key(self.folder / "host_key", kind)

    def start(self) -> None:
        # What comes first counts.
        text = "".join(f"{line}\n" for line in self.extra) + _CONFIG.format(port=self.port, folder=self.folder)
        (self.folder / "sshd_config").write_text(text)
        with (self.folder / "sshd.log").open("ab") as log:
            argv = [self._program, "-D", "-e", "-f", str(self.folder / "sshd_config")]
            self._process = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        wait_until(self._answers, f"sshd on port {self.port}, see {self.folder}/sshd.log")

    def restart(self) -> None:
        """As after a reboot: connections are gone, configuration and host key are read anew."""
        self.kill()
        self.start()

    def kill(self) -> None:
        """SIGKILL to the server and the processes of its connections, as if the machine had gone."""
        if self._process is None:
            return
        server = psutil.Process(self._process.pid)
        family = [server, *server.children(recursive=True)]
        for process in family:
            with contextlib.suppress(psutil.NoSuchProcess):
                if process is server or process.name().startswith("sshd"):
                    process.kill()
        self._process.wait()
        self._process = None

    def _answers(self) -> bool:
        assert self._process is not None
        assert self._process.poll() is None, (self.folder / "sshd.log").read_text(errors="replace")
        with socket.socket() as probe:
            probe.settimeout(1.0)
            return probe.connect_ex(("127.0.0.1", self.port)) == 0


@pytest.fixture
def openssh_server(tmp_path: Path) -> Iterator[OpenSshServer]:
    """A running OpenSSH server that lets in one key, as the user who runs the tests."""
    server = OpenSshServer(tmp_path / "sshd")
    server.start()
    yield server
    server.kill()

"""What an operator has in ~/.ssh counts: aliases, keys, the SSH agent, certificates. Against a real OpenSSH server."""

from __future__ import annotations

import dataclasses
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from console.config import parse
from console.demo_config import SOURCES, demo_config
from console.host import endpoint as endpoint_of
from console.link.connect import Endpoint, open_connection
from console.link.errors import LinkRefused
from tests.link.certificates import make_authority, sign
from tests.sshd import OpenSshServer, make_key
from tests.waiting import wait_until

PASSPHRASE = "open sesame"


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The operator's home, with nothing in it but an empty .ssh; no SSH agent."""
    folder = tmp_path / "operator"
    (folder / ".ssh").mkdir(parents=True, mode=0o700)
    monkeypatch.setenv("HOME", str(folder))
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
    return folder


@pytest.fixture
def ssh_agent(tmp_path: Path) -> Iterator[Path]:
    """A running ssh-agent's socket."""
    path = tmp_path / "agent.sock"
    agent = subprocess.Popen(["ssh-agent", "-D", "-a", str(path)], stdout=subprocess.DEVNULL)
    wait_until(path.exists, "the SSH agent")
    yield path
    agent.kill()
    agent.wait()


def add_to(ssh_agent: Path, key: Path, passphrase: str, folder: Path) -> None:
    """Add a key with a passphrase to the agent, with ssh-add."""
    ask = folder / "ask"
    ask.write_text(f"#!/bin/sh\necho '{passphrase}'\n")
    ask.chmod(0o700)
    environment = {"SSH_AUTH_SOCK": str(ssh_agent), "SSH_ASKPASS": str(ask), "SSH_ASKPASS_REQUIRE": "force"}
    environment |= {"PATH": "/usr/bin:/bin", "DISPLAY": ":none"}
    subprocess.run(["ssh-add", "-q", str(key)], check=True, env=environment, stdin=subprocess.DEVNULL)


def protect(key: Path) -> None:
    argv = ["ssh-keygen", "-q", "-p", "-P", "", "-N", PASSPHRASE, "-f", str(key)]
    subprocess.run(argv, check=True, stdout=subprocess.DEVNULL)


async def connects(endpoint: Endpoint) -> bool:
    connection = await open_connection(endpoint)
    await connection.close()
    return True


async def refused(endpoint: Endpoint) -> str:
    with pytest.raises(LinkRefused) as caught:
        await open_connection(endpoint)
    return str(caught.value)


def config_of(server: OpenSshServer, **changes: str) -> Endpoint:
    """The endpoint of a config.toml that names the host and leaves the rest to ~/.ssh."""
    text = demo_config(
        port=server.port, user=server.user, key="K", known_hosts="H", workdir="/w", python="p", model_dir="/m",
        sources=dict.fromkeys(SOURCES, "s"), size=1, server_port=1,
    )  # fmt: skip
    kept = [
        line for line in text.splitlines()
        if not line.startswith(("port =", "user =", "known_hosts", "identity_files", "ssh_config", "address"))
    ]  # fmt: skip
    at = kept.index("[host]") + 1
    kept[at:at] = ['address = "gpu-3"', *(f'{name} = "{value}"' for name, value in changes.items())]
    return endpoint_of(parse("\n".join(kept).encode(), "config.toml"))


def write_ssh_config(home: Path, server: OpenSshServer, extra: str = "") -> None:
    (home / ".ssh" / "config").write_text(
        f"Host gpu-*\n  HostName 127.0.0.1\n  Port {server.port}\n  User {server.user}\n{extra}"
    )
    (home / ".ssh" / "known_hosts").write_text(server.known_hosts.read_text())


async def test_an_alias_a_key_and_known_hosts_in_their_usual_places(openssh_server: OpenSshServer, home: Path) -> None:
    write_ssh_config(home, openssh_server)
    for suffix in ("", ".pub"):
        key = home / ".ssh" / f"id_ed25519{suffix}"
        key.write_bytes((openssh_server.folder / f"user_key{suffix}").read_bytes())
        key.chmod(0o600)
    assert await connects(config_of(openssh_server))
    assert await connects(config_of(openssh_server, ssh_config="~/.ssh/config"))


async def test_nobody_needs_an_ssh_configuration(openssh_server: OpenSshServer, home: Path) -> None:
    endpoint = dataclasses.replace(config_of(openssh_server), host="127.0.0.1", port=openssh_server.port)
    endpoint = dataclasses.replace(
        endpoint, user=openssh_server.user, identity_files=(openssh_server.key,), known_hosts=openssh_server.known_hosts
    )
    assert not (home / ".ssh" / "config").exists()
    assert await connects(endpoint)
    assert "no_such_file" in await refused(config_of(openssh_server, ssh_config="~/.ssh/no_such_file"))


async def test_a_key_with_a_passphrase_works_through_the_agent_alone(
    openssh_server: OpenSshServer, home: Path, ssh_agent: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_ssh_config(home, openssh_server, f"  IdentityFile {openssh_server.key}\n")
    protect(openssh_server.key)
    text = await refused(config_of(openssh_server))
    assert "refused the login" in text
    assert "ssh-add" in text
    add_to(ssh_agent, openssh_server.key, PASSPHRASE, tmp_path)
    monkeypatch.setenv("SSH_AUTH_SOCK", str(ssh_agent))
    assert await connects(config_of(openssh_server))
    monkeypatch.delenv("SSH_AUTH_SOCK")
    write_ssh_config(home, openssh_server, f"  IdentityAgent {ssh_agent}\n")
    assert await connects(config_of(openssh_server))


async def test_files_that_are_not_there_are_passed_over_as_ssh_does(
    openssh_server: OpenSshServer, home: Path, ssh_agent: Path, tmp_path: Path
) -> None:
    lines = f"  IdentityFile ~/.ssh/id_gone\n  CertificateFile ~/.ssh/gone-cert.pub\n  IdentityAgent {ssh_agent}\n"
    write_ssh_config(home, openssh_server, lines)
    add_to(ssh_agent, openssh_server.key, "", tmp_path)
    assert await connects(config_of(openssh_server))


@pytest.mark.parametrize("named", ["user_key.pub", "user_key"])
async def test_the_key_that_is_named_is_taken_from_an_agent_with_many(
    openssh_server: OpenSshServer, home: Path, ssh_agent: Path, tmp_path: Path, named: str
) -> None:
    for number in range(4):
        make_key(tmp_path / f"other{number}")
        add_to(ssh_agent, tmp_path / f"other{number}", "", tmp_path)
    protect(openssh_server.key)
    add_to(ssh_agent, openssh_server.key, PASSPHRASE, tmp_path)
    openssh_server.extra.append("MaxAuthTries 2")
    openssh_server.restart()
    lines = f"  IdentityFile {openssh_server.folder / named}\n  IdentityAgent {ssh_agent}\n"
    write_ssh_config(home, openssh_server, lines)
    assert "refused the login" in await refused(config_of(openssh_server))  # the others come first
    write_ssh_config(home, openssh_server, lines + "  IdentitiesOnly yes\n")
    assert await connects(config_of(openssh_server))


@pytest.fixture
def for_certificates(openssh_server: OpenSshServer, tmp_path: Path) -> OpenSshServer:
    """A server that lets in who has a certificate of an authority; its list of keys is empty."""
    authority = make_authority(tmp_path / "authority")
    (openssh_server.folder / "authorized_keys").write_text("")
    openssh_server.extra.append(f"TrustedUserCAKeys {authority}.pub")
    openssh_server.restart()
    return openssh_server


async def test_a_user_certificate_lets_in(for_certificates: OpenSshServer, home: Path, tmp_path: Path) -> None:
    server, authority = for_certificates, tmp_path / "authority"
    write_ssh_config(home, server, f"  IdentityFile {server.key}\n")
    assert "refused the login" in await refused(config_of(server))
    beside = sign(authority, server.key, server.user)
    assert await connects(config_of(server))
    elsewhere = beside.rename(home / "certificate.pub")
    write_ssh_config(home, server, f"  IdentityFile {server.key}\n  CertificateFile {elsewhere}\n")
    assert await connects(config_of(server))


async def test_a_user_certificate_in_the_agent_lets_in(
    for_certificates: OpenSshServer, home: Path, ssh_agent: Path, tmp_path: Path
) -> None:
    server = for_certificates
    write_ssh_config(home, server, f"  IdentityAgent {ssh_agent}\n")
    protect(server.key)
    sign(tmp_path / "authority", server.key, server.user)
    add_to(ssh_agent, server.key, PASSPHRASE, tmp_path)
    for path in (server.key, server.key.with_name("user_key-cert.pub")):
        path.unlink()
    assert await connects(config_of(server))


@pytest.mark.parametrize("principal, valid", [("somebody", "-1h:+1d"), ("", "-2d:-1d")])
async def test_a_user_certificate_that_is_not_valid_lets_nobody_in(
    for_certificates: OpenSshServer, home: Path, tmp_path: Path, principal: str, valid: str
) -> None:
    server = for_certificates
    write_ssh_config(home, server, f"  IdentityFile {server.key}\n")
    sign(tmp_path / "authority", server.key, principal or server.user, valid=valid)
    assert "refused the login" in await refused(config_of(server))


async def test_a_proxy_command_is_used(openssh_server: OpenSshServer, home: Path, tmp_path: Path) -> None:
    mark = tmp_path / "used"
    relay = f"python3 -c \"import socket,sys,threading,os; open('{mark}','w'); "
    relay += f"s=socket.create_connection(('127.0.0.1',{openssh_server.port})); "
    relay += "threading.Thread(target=lambda:[s.sendall(d) for d in iter(lambda:os.read(0,65536),b'')],daemon=True)"
    relay += ".start(); [os.write(1,d) for d in iter(lambda:s.recv(65536),b'')]\""
    write_ssh_config(home, openssh_server, f"  IdentityFile {openssh_server.key}\n  ProxyCommand {relay}\n")
    assert await connects(config_of(openssh_server))
    assert mark.exists()


async def test_a_new_user_key_is_taken_at_the_next_try(openssh_server: OpenSshServer, home: Path) -> None:
    key = home / ".ssh" / "mine"
    make_key(key)
    write_ssh_config(home, openssh_server, f"  IdentityFile {key}\n")
    assert "refused the login" in await refused(config_of(openssh_server))
    (openssh_server.folder / "authorized_keys").write_bytes(key.with_suffix(".pub").read_bytes())
    assert await connects(config_of(openssh_server))

"""Host keys, each case against a real OpenSSH server: known, new, changed, revoked, certified, of jump hosts."""

from __future__ import annotations

import dataclasses
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from console.link.connect import Endpoint, open_connection
from console.link.errors import LinkRefused
from console.link.hostkeys import ANY_NEW_KEY
from tests.link.certificates import make_authority, sign
from tests.sshd import OpenSshServer, make_key


@pytest.fixture
def jump_server(tmp_path: Path) -> Iterator[OpenSshServer]:
    server = OpenSshServer(tmp_path / "jump")
    server.start()
    yield server
    server.kill()


async def connects(endpoint: Endpoint, accept: str = "") -> bool:
    connection = await open_connection(endpoint, accept)
    await connection.close()
    return True


async def refused(endpoint: Endpoint, accept: str = "") -> LinkRefused:
    with pytest.raises(LinkRefused) as caught:
        await open_connection(endpoint, accept)
    assert "\n" not in str(caught.value)
    return caught.value


def hash_names(known_hosts: Path) -> None:
    subprocess.run(["ssh-keygen", "-q", "-H", "-f", str(known_hosts)], check=True, capture_output=True)


@pytest.mark.parametrize("kind", ["rsa", "ecdsa"])
async def test_a_key_of_another_kind_is_a_changed_key(openssh_server: OpenSshServer, kind: str) -> None:
    openssh_server.change_host_key(kind)
    openssh_server.restart()
    for accept in ("", ANY_NEW_KEY):
        error = await refused(openssh_server.endpoint, accept)
        assert "has changed: known is ssh-ed25519" in str(error)
        assert error.fingerprint == ""
    assert openssh_server.host_key not in openssh_server.known_hosts.read_text()


async def test_the_known_kind_is_asked_for_first(openssh_server: OpenSshServer) -> None:
    make_key(openssh_server.folder / "rsa_key", "rsa")
    openssh_server.extra.append(f"HostKey {openssh_server.folder}/rsa_key")
    openssh_server.restart()
    kind, key, _ = (openssh_server.folder / "rsa_key.pub").read_text().split()
    openssh_server.known_hosts.write_text(f"[127.0.0.1]:{openssh_server.port} {kind} {key}\n")
    assert await connects(openssh_server.endpoint)


async def test_hashed_names_are_found(openssh_server: OpenSshServer) -> None:
    hash_names(openssh_server.known_hosts)
    assert openssh_server.known_hosts.read_text().startswith("|1|")
    assert await connects(openssh_server.endpoint)
    openssh_server.change_host_key()
    openssh_server.restart()
    assert "has changed" in str(await refused(openssh_server.endpoint, ANY_NEW_KEY))


async def test_the_key_of_another_port_is_not_this_ones(openssh_server: OpenSshServer) -> None:
    openssh_server.known_hosts.write_text(f"[127.0.0.1]:{openssh_server.port + 1} {openssh_server.host_key}\n")
    assert "not known yet" in str(await refused(openssh_server.endpoint))


async def test_an_address_does_not_vouch_for_a_name(openssh_server: OpenSshServer) -> None:
    by_name = dataclasses.replace(openssh_server.endpoint, host="localhost")
    error = await refused(by_name)
    assert f"[localhost]:{openssh_server.port} is not known yet" in str(error)


@pytest.mark.parametrize("names", ["*", "[127.0.0.1]:{port}"])
async def test_a_revoked_key_is_refused_though_it_is_listed(openssh_server: OpenSshServer, names: str) -> None:
    with openssh_server.known_hosts.open("a") as file:
        file.write(f"@revoked {names.format(port=openssh_server.port)} {openssh_server.host_key}\n")
    error = await refused(openssh_server.endpoint, ANY_NEW_KEY)
    assert "revoked" in str(error)
    assert error.fingerprint == ""


@pytest.fixture
def certified(openssh_server: OpenSshServer, tmp_path: Path) -> OpenSshServer:
    """A server that shows a certificate; its authority is known, its key is not."""
    authority = make_authority(tmp_path / "authority")
    sign(authority, openssh_server.folder / "host_key", "127.0.0.1", host=True)
    openssh_server.extra.append(f"HostCertificate {openssh_server.folder}/host_key-cert.pub")
    openssh_server.restart()
    kind, key, _ = authority.with_suffix(".pub").read_text().split()
    openssh_server.known_hosts.write_text(f"@cert-authority [127.0.0.*]:*,127.0.0.* {kind} {key}\n")
    return openssh_server


async def test_a_host_certificate_of_a_known_authority_is_enough(certified: OpenSshServer) -> None:
    assert await connects(certified.endpoint)
    certified.change_host_key()  # set up anew, and certified again
    sign(certified.folder.parent / "authority", certified.folder / "host_key", "127.0.0.1", host=True)
    certified.restart()
    assert await connects(certified.endpoint)


async def test_a_certificate_for_another_host_or_another_time_is_refused(certified: OpenSshServer) -> None:
    authority, key = certified.folder.parent / "authority", certified.folder / "host_key"
    sign(authority, key, "10.0.0.9", host=True)
    certified.restart()
    assert "principal mismatch" in str(await refused(certified.endpoint, ANY_NEW_KEY))
    sign(authority, key, "127.0.0.1", host=True, valid="-2d:-1d")
    certified.restart()
    assert "expired" in str(await refused(certified.endpoint, ANY_NEW_KEY))


async def test_a_revoked_authority_is_refused(certified: OpenSshServer) -> None:
    text = certified.known_hosts.read_text()
    certified.known_hosts.write_text(text + text.replace("@cert-authority", "@revoked"))
    assert "revoked" in str(await refused(certified.endpoint, ANY_NEW_KEY))


async def test_a_certificate_of_a_stranger_makes_the_host_a_new_one(certified: OpenSshServer, tmp_path: Path) -> None:
    certified.known_hosts.write_text("")
    error = await refused(certified.endpoint)
    assert "not known yet" in str(error)
    assert await connects(certified.endpoint, error.fingerprint)
    assert certified.host_key in certified.known_hosts.read_text()


async def test_the_files_of_the_ssh_configuration_are_used(openssh_server: OpenSshServer, tmp_path: Path) -> None:
    config = tmp_path / "ssh_config"
    endpoint = dataclasses.replace(openssh_server.endpoint, known_hosts=None, ssh_config=(config,))
    config.write_text(f"UserKnownHostsFile {tmp_path}/mine\nGlobalKnownHostsFile {openssh_server.known_hosts}\n")
    assert await connects(endpoint)
    config.write_text(f"UserKnownHostsFile {tmp_path}/mine\nGlobalKnownHostsFile {tmp_path}/none\n")
    assert await connects(endpoint, ANY_NEW_KEY)
    assert openssh_server.host_key in (tmp_path / "mine").read_text()


@pytest.mark.parametrize("lines", ["UserKnownHostsFile none", "UserKnownHostsFile /dev/null"])
async def test_no_configuration_turns_the_check_off(
    openssh_server: OpenSshServer, tmp_path: Path, lines: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    config = tmp_path / "ssh_config"
    config.write_text(f"{lines}\nStrictHostKeyChecking no\n")
    endpoint = dataclasses.replace(openssh_server.endpoint, known_hosts=None, ssh_config=(config,))
    assert "not known yet" in str(await refused(endpoint))


async def test_an_alias_for_the_key_is_looked_up_and_recorded(openssh_server: OpenSshServer, tmp_path: Path) -> None:
    config = tmp_path / "ssh_config"
    config.write_text("HostKeyAlias gpu-3\n")
    endpoint = dataclasses.replace(openssh_server.endpoint, ssh_config=(config,))
    assert "gpu-3 is not known yet" in str(await refused(endpoint))
    openssh_server.known_hosts.write_text("")
    assert await connects(endpoint, ANY_NEW_KEY)
    assert openssh_server.known_hosts.read_text() == f"gpu-3 {openssh_server.host_key}\n"
    assert await connects(endpoint)
    openssh_server.change_host_key()
    openssh_server.restart()
    assert "the host key of gpu-3 has changed" in str(await refused(endpoint, ANY_NEW_KEY))


def through_jump(target: OpenSshServer, jump: OpenSshServer, folder: Path, extra: str = "") -> Endpoint:
    """The target, reached by way of another server; both keys are looked up in one file."""
    known = folder / "known_hosts"
    known.write_text(target.known_hosts.read_text() + jump.known_hosts.read_text())
    config = folder / "ssh_config"
    config.write_text(
        f"Host gpu\n  HostName 127.0.0.1\n  Port {target.port}\n  IdentityFile {target.key}\n  ProxyJump jump\n"
        f"Host jump\n  HostName 127.0.0.1\n  Port {jump.port}\n  IdentityFile {jump.key}\n{extra}"
        f"Host *\n  User {target.user}\n  UserKnownHostsFile {known}\n"
    )
    return Endpoint("gpu", ssh_config=(config,))


async def test_a_jump_host_is_passed_and_closed(
    openssh_server: OpenSshServer, jump_server: OpenSshServer, tmp_path: Path
) -> None:
    connection = await open_connection(through_jump(openssh_server, jump_server, tmp_path))
    assert connection.jump is not None
    done = await connection.ssh.run("echo $SSH_CONNECTION", check=True)
    assert str(done.stdout).split()[3] == str(openssh_server.port)
    await connection.close()
    assert connection.jump.ssh.is_closed()


async def test_a_jump_host_with_a_new_key_is_refused_until_it_is_accepted(
    openssh_server: OpenSshServer, jump_server: OpenSshServer, tmp_path: Path
) -> None:
    endpoint = through_jump(openssh_server, jump_server, tmp_path)
    known = tmp_path / "known_hosts"
    known.write_text(openssh_server.known_hosts.read_text())
    error = await refused(endpoint)
    assert f"[127.0.0.1]:{jump_server.port} is not known yet" in str(error)
    assert await connects(endpoint, error.fingerprint)
    assert jump_server.host_key in known.read_text()
    assert await connects(endpoint)


@pytest.mark.parametrize("kind", ["ed25519", "rsa"])
async def test_a_jump_host_with_a_changed_key_is_refused(
    openssh_server: OpenSshServer, jump_server: OpenSshServer, tmp_path: Path, kind: str
) -> None:
    endpoint = through_jump(openssh_server, jump_server, tmp_path)
    jump_server.change_host_key(kind)
    jump_server.restart()
    error = await refused(endpoint, ANY_NEW_KEY)
    assert f"the host key of [127.0.0.1]:{jump_server.port} has changed" in str(error)
    assert error.fingerprint == ""


async def test_the_target_behind_a_jump_host_is_checked_as_strictly(
    openssh_server: OpenSshServer, jump_server: OpenSshServer, tmp_path: Path
) -> None:
    endpoint = through_jump(openssh_server, jump_server, tmp_path)
    openssh_server.change_host_key("ecdsa")
    openssh_server.restart()
    assert f"[127.0.0.1]:{openssh_server.port} has changed" in str(await refused(endpoint, ANY_NEW_KEY))


async def test_the_known_hosts_of_our_own_config_count_for_jump_hosts_too(
    openssh_server: OpenSshServer, jump_server: OpenSshServer, tmp_path: Path
) -> None:
    endpoint = through_jump(openssh_server, jump_server, tmp_path)
    ours = tmp_path / "ours"
    ours.write_text(openssh_server.known_hosts.read_text())
    endpoint = dataclasses.replace(endpoint, known_hosts=ours)
    assert f"[127.0.0.1]:{jump_server.port} is not known yet" in str(await refused(endpoint))
    assert await connects(endpoint, ANY_NEW_KEY)
    assert jump_server.host_key in ours.read_text()


async def test_jump_hosts_that_cannot_work_are_named(
    openssh_server: OpenSshServer, jump_server: OpenSshServer, tmp_path: Path
) -> None:
    loop = through_jump(openssh_server, jump_server, tmp_path, extra="  ProxyJump jump\n")
    assert "jump is to be reached through itself" in str(await refused(loop))
    jump_server.extra.append("AllowTcpForwarding no")
    jump_server.restart()
    closed = through_jump(openssh_server, jump_server, tmp_path)
    assert "the jump host passes nothing on to gpu" in str(await refused(closed))


async def test_a_jump_host_that_lets_nobody_in_is_named(
    openssh_server: OpenSshServer, jump_server: OpenSshServer, tmp_path: Path
) -> None:
    endpoint = through_jump(openssh_server, jump_server, tmp_path)
    (jump_server.folder / "authorized_keys").write_text("")
    assert "jump refused the login" in str(await refused(endpoint))

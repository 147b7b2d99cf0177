"""Connecting, refusing, losing and finding again, against both servers."""

from __future__ import annotations

import asyncio
import dataclasses
import hashlib
import os
import socket
import time
from collections.abc import Sequence
from pathlib import Path

import asyncssh
import pytest
from hypothesis import given
from hypothesis import strategies as st

from console.link import reconnect
from console.link.connect import CONNECT_TIMEOUT_S, Endpoint, open_connection
from console.link.errors import LinkDown, LinkRefused, last_line, one_line
from console.link.reconnect import LARGE, LONGEST_DELAY_S, Link, LinkStatus, delay
from tests.agent.rig import until
from tests.link.conftest import Server, through
from tests.link.relay import Relay
from tests.sshd import OpenSshServer, make_key
from tests.waiting import free_port


async def reach(link: Link, state: str, timeout_s: float = 20.0) -> LinkStatus:
    """Wait for a state of the link and return that status."""
    async with asyncio.timeout(timeout_s):
        async for status in link.changes():
            if status.state == state:
                return status
    raise AssertionError("the link's changes ended")


async def test_run_gives_output_code_and_signal(server: Server) -> None:
    async with Link(server.endpoint) as link:
        await link.connected(20)
        assert link.status.state == "live"
        done = await link.run(
            ["sh", "-c", 'cat; echo "$1" >&2; exit 3', "sh", "a 'quoted' $word\nand a line"], b"\0in\xff"
        )
        assert (done.code, done.stdout) == (3, b"\0in\xff")
        assert done.stderr == b"a 'quoted' $word\nand a line\n"
        killed = await link.run(["sh", "-c", "kill -9 $$"])
        assert killed.code in (-9, 128 + 9)  # the second where the login shell stayed in between


async def test_a_command_may_end_before_it_gets_its_input(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    start = reconnect._start

    async def start_and_see_it_end(
        ssh: asyncssh.SSHClientConnection, argv: Sequence[str]
    ) -> asyncssh.SSHClientProcess[bytes]:
        process = await start(ssh, argv)
        await process.wait_closed()
        return process

    monkeypatch.setattr(reconnect, "_start", start_and_see_it_end)
    async with Link(server.endpoint) as link:
        await link.connected(20)
        for data in (b"", b"not read"):
            done = await link.run(["sh", "-c", "echo over; exit 3"], data)
            assert (done.code, done.stdout) == (3, b"over\n")


async def test_a_large_input_arrives_whole(server: Server) -> None:
    async with Link(server.endpoint) as link:
        await link.connected(20)
        large = os.urandom(LARGE + 1)
        done = await link.run(["sha256sum"], large)
        assert done.stdout.split()[0].decode() == hashlib.sha256(large).hexdigest()


async def test_a_large_input_has_a_connection_of_its_own(openssh_server: OpenSshServer) -> None:
    async with Link(openssh_server.endpoint) as link:
        await link.connected(20)
        # SSH_CONNECTION names the client's port.
        argv = ["sh", "-c", "cat >/dev/null; echo $SSH_CONNECTION"]
        small, again, large = [(await link.run(argv, data)).stdout for data in (b"", b"x", b"x" * (LARGE + 1))]
        assert small == again != large


async def test_a_command_that_does_not_end_is_given_up(server: Server) -> None:
    async with Link(server.endpoint) as link:
        await link.connected(20)
        with pytest.raises(LinkDown, match=r"sleep on 127\.0\.0\.1 did not end within 0 s"):
            await link.run(["sleep", "3"], timeout_s=0.3)


async def test_a_key_that_is_not_let_in_is_refused_once(server: Server, tmp_path: Path) -> None:
    make_key(tmp_path / "stranger")
    endpoint = dataclasses.replace(server.endpoint, identity_files=(tmp_path / "stranger",))
    async with Link(endpoint) as link:
        with pytest.raises(LinkRefused, match="refused the login"):
            await link.connected(20)
        status = link.status
        assert "ssh-add" in status.detail
        assert "\n" not in status.detail
        with pytest.raises(LinkDown):
            await link.run(["true"])
        link.retry()
        assert (await reach(link, "connecting")).since >= status.since
        await reach(link, "refused")


async def test_a_refusal_is_not_followed_by_another_try(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither a login that is refused nor a host that is not known is hammered: the operator would be banned."""
    monkeypatch.setattr(reconnect, "FIRST_DELAY_S", 0.01)
    monkeypatch.setattr(reconnect, "LONGEST_DELAY_S", 0.01)
    make_key(tmp_path / "stranger")
    assert server.endpoint.port is not None
    async with Relay(server.endpoint.port) as relay:
        known = through(relay, server)
        stranger = dataclasses.replace(known, identity_files=(tmp_path / "stranger",))
        unknown = dataclasses.replace(known, known_hosts=tmp_path / "none")
        for endpoint in (stranger, unknown):
            before = relay.connections
            async with Link(endpoint) as link:
                await reach(link, "refused")
                with pytest.raises(TimeoutError):
                    await reach(link, "connecting", 0.5)
                assert relay.connections == before + 1
                link.retry()  # the key
                await reach(link, "connecting")
                await reach(link, "refused")
                assert relay.connections == before + 2


async def test_a_missing_key_file_is_named(server: Server, tmp_path: Path) -> None:
    endpoint = dataclasses.replace(server.endpoint, identity_files=(tmp_path / "no_such_key",))
    with pytest.raises(LinkRefused, match="no_such_key"):
        await open_connection(endpoint)


async def test_a_changed_host_key_is_refused_until_it_is_settled(own_server: Server) -> None:
    async with Link(own_server.endpoint) as link:
        await link.connected(20)
        own_server.kill()
        own_server.change_host_key()
        own_server.start()
        status = await reach(link, "refused")
        assert "has changed" in status.detail
        assert "ssh-keygen -R" in status.detail
        assert status.host_key == ""
        link.retry("SHA256:whatever")  # a changed key cannot be accepted from here
        await reach(link, "connecting")
        await reach(link, "refused")
        known_hosts = own_server.endpoint.known_hosts
        assert known_hosts is not None
        known_hosts.write_text("")
        link.retry()
        await reach(link, "connecting")
        unknown = await reach(link, "refused")
        assert "not known yet" in unknown.detail
        link.retry(unknown.host_key)
        await link_live_after_retry(link)


async def link_live_after_retry(link: Link) -> None:
    await reach(link, "live")
    assert (await link.run(["true"])).code == 0


async def test_a_new_host_key_is_accepted_only_when_told(server: Server, tmp_path: Path) -> None:
    file = tmp_path / "new" / "known_hosts"
    endpoint = dataclasses.replace(server.endpoint, known_hosts=file)
    with pytest.raises(LinkRefused) as refused:
        await open_connection(endpoint)
    assert refused.value.fingerprint.startswith("SHA256:")
    assert refused.value.fingerprint in str(refused.value)
    with pytest.raises(LinkRefused):
        await open_connection(endpoint, "SHA256:" + "A" * 43)
    assert not file.exists()
    async with Link(endpoint, accept_new_host_key=True) as link:
        await link.connected(20)
    assert file.stat().st_mode & 0o777 == 0o600
    assert file.read_text().startswith(f"[127.0.0.1]:{endpoint.port} ssh-")
    async with Link(endpoint) as link:
        await link.connected(20)


async def test_the_ssh_configuration_is_honoured(server: Server, tmp_path: Path) -> None:
    there = server.endpoint
    config = tmp_path / "ssh_config"
    config.write_text(
        f"Host gpu\n  HostName {there.host}\n  Port {there.port}\n  User {there.user}\n"
        f"  IdentityFile {there.identity_files[0]}\n  UserKnownHostsFile {tmp_path}/none {there.known_hosts}\n"
        "  RequestTTY force\n"
    )
    async with Link(Endpoint("gpu", ssh_config=(config,))) as link:
        await link.connected(20)
        assert (await link.run(["printf", "a\\nb"])).stdout == b"a\nb"


async def test_a_jump_host_is_honoured(openssh_server: OpenSshServer, tmp_path: Path) -> None:
    there = openssh_server.endpoint
    config = tmp_path / "ssh_config"
    config.write_text(
        f"Host jump gpu\n  HostName {there.host}\n  Port {there.port}\n  User {there.user}\n"
        f"  IdentityFile {there.identity_files[0]}\n  UserKnownHostsFile {there.known_hosts}\n"
        "Host gpu\n  ProxyJump jump\n"
    )
    async with Link(Endpoint("gpu", ssh_config=(config,))) as link:
        await link.connected(20)
        assert (await link.run(["true"])).code == 0


async def test_a_server_killed_and_started_again_is_found_again(own_server: Server) -> None:
    async with Link(own_server.endpoint) as link:
        await link.connected(20)
        running = asyncio.create_task(link.run(["sleep", "10"]))
        await asyncio.sleep(0)
        own_server.kill()
        lost = await reach(link, "lost")
        with pytest.raises(LinkDown):
            await running
        with pytest.raises(LinkDown, match=r"127\.0\.0\.1"):
            await link.run(["true"])
        own_server.start()
        live = await reach(link, "live")
        assert live.since >= lost.since
        assert (await link.run(["echo", "again"])).stdout == b"again\n"


async def test_a_silent_network_is_noticed_and_outlived(server: Server) -> None:
    assert server.endpoint.port is not None
    async with Relay(server.endpoint.port) as relay, Link(through(relay, server)) as link:
        await link.connected(20)
        relay.cut()
        start = time.monotonic()
        running = asyncio.create_task(link.run(["true"]))
        status = await reach(link, "lost")
        assert time.monotonic() - start < 11.0
        assert "keepalive" in status.detail
        with pytest.raises(LinkDown):
            await running
        relay.mend()
        link.retry()
        await reach(link, "live")
        assert (await link.run(["echo", "back"])).stdout == b"back\n"


async def test_who_asks_to_try_now_does_not_wait_for_a_try_that_hangs(server: Server) -> None:
    assert server.endpoint.port is not None
    with socket.create_server(("127.0.0.1", 0)) as silent:
        async with Relay(silent.getsockname()[1]) as relay, Link(through(relay, server)) as link:
            await until(lambda: relay.connections == 1, within=20)
            relay.target = server.endpoint.port
            link.retry()
            await reach(link, "live", CONNECT_TIMEOUT_S / 2)
            assert relay.connections == 2


async def test_what_nobody_foresaw_is_told_and_stops(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    async def fails(**_: object) -> None:
        raise AssertionError("a mistake\nof a library")

    monkeypatch.setattr(asyncssh, "connect", fails)
    async with Link(server.endpoint) as link:
        status = await reach(link, "refused")
        assert "unexpected AssertionError: a mistake of a library" in status.detail


async def test_nobody_there_is_tried_again_for_ever(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reconnect, "FIRST_DELAY_S", 0.01)
    monkeypatch.setattr(reconnect, "LONGEST_DELAY_S", 0.05)
    async with Relay(free_port()) as relay, Link(through(relay, server)) as link:
        status = await reach(link, "lost")
        assert "cannot reach 127.0.0.1" in status.detail
        with pytest.raises(LinkDown):
            await link.connected(0.2)
        await until(lambda: relay.connections >= 25, within=20)
        assert link.status == status  # lost since the first time
        assert server.endpoint.port is not None
        relay.target = server.endpoint.port
        await reach(link, "live")


async def test_a_known_hosts_line_that_makes_no_sense_is_passed_over(own_server: Server) -> None:
    known_hosts = own_server.endpoint.known_hosts
    assert known_hosts is not None
    known_hosts.write_text("nonsense\n@what is this\n" + known_hosts.read_text())
    async with Link(own_server.endpoint) as link:
        await link.connected(20)


@given(st.integers(min_value=0, max_value=10_000), st.floats(min_value=0, max_value=1))
def test_delays_grow_to_a_cap_and_never_hammer(attempt: int, jitter: float) -> None:
    assert 0.25 <= delay(attempt, jitter) <= LONGEST_DELAY_S
    assert delay(attempt, 1.0) <= delay(attempt + 1, 1.0)


@given(st.text() | st.binary())
def test_outside_text_becomes_one_safe_line(text: str | bytes) -> None:
    line = one_line(text)
    assert line.isprintable()
    assert len(line) <= 400


def test_the_last_line_that_says_something() -> None:
    assert last_line(b"first\n\x1b[31mno agent\x1b[0m at\t/tmp\x07\n \r\n") == "no agent at /tmp"
    assert last_line(b"\n \n") == ""

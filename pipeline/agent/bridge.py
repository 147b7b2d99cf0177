"""Stdio to the agent's UNIX socket and back, for an SSH exec channel. Standard library only, starts in milliseconds.

Run as ``python -I -S bridge.py --workdir W [--read-only]``. The end of stdin is passed on as a half-closed socket; the
bridge exits when the agent has closed its side or nobody reads its stdout.
"""

from __future__ import annotations

import os
import sys

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))

import select
import socket

from pipeline.agent import paths

BLOCK = 65536
NO_AGENT = 69  # EX_UNAVAILABLE


def main(workdir: str, *, read_only: bool) -> int:
    """Pump until either side ends. 0, or 69 when no agent answers."""
    path = paths.socket_path(workdir, read_only=read_only)
    server = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        paths.check_private(os.path.dirname(path))
        paths.check_socket(path)
        server.connect(path)
    except (OSError, paths.UnsafeFolderError) as error:
        print(f"no agent at {path}: {error}", file=sys.stderr)
        return NO_AGENT
    pump(server)
    return 0


def pump(server: socket.socket) -> None:
    """Copy stdin to the socket and the socket to stdout; each side buffers one block at most."""
    server.setblocking(False)
    os.set_blocking(0, False)
    os.set_blocking(1, False)
    wire = server.fileno()
    up, down = b"", b""
    stdin_open = True
    while True:
        wanted: dict[int, int] = {wire: 0, 1: select.POLLOUT if down else 0}
        if stdin_open and not up:
            wanted[0] = select.POLLIN
        if up:
            wanted[wire] |= select.POLLOUT
        if not down:
            wanted[wire] |= select.POLLIN
        poller = select.poll()
        for handle, events in wanted.items():
            poller.register(handle, events)
        ready = dict(poller.poll())
        if ready.get(1, 0) & (select.POLLERR | select.POLLNVAL):
            return
        try:
            if ready.get(0):
                up = os.read(0, BLOCK)
                if not up:
                    stdin_open = False
                    server.shutdown(socket.SHUT_WR)
            if up and ready.get(wire, 0) & select.POLLOUT:
                up = up[server.send(up) :]
            if not down and ready.get(wire, 0) & (select.POLLIN | select.POLLHUP | select.POLLERR):
                down = server.recv(BLOCK)
                if not down:
                    return
            if down and ready.get(1, 0) & select.POLLOUT:
                down = down[os.write(1, down) :]
        except BlockingIOError:
            continue
        except OSError:
            return


if __name__ == "__main__":
    place = sys.argv[sys.argv.index("--workdir") + 1] if "--workdir" in sys.argv[:-1] else ""
    if not place:
        print("usage: bridge.py --workdir W [--read-only]", file=sys.stderr)
        sys.exit(2)
    sys.exit(main(place, read_only="--read-only" in sys.argv))

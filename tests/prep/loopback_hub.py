"""A small hub on the loopback interface: the part of the Hugging Face hub's HTTP that datasets are read by."""

from __future__ import annotations

import hashlib
import json
import re
import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@dataclass
class Repository:
    """A dataset and how the hub misbehaves when it is asked for it."""

    files: dict[str, bytes] = field(default_factory=dict)
    gated: int = 0  # the status, 401 or 403, that its data files are refused with
    busy: int = 0  # times that 429 is answered first; negative: always
    busy_files: int = 0  # the same, of data files alone
    resets: list[int] = field(default_factory=list)  # bytes after which the next downloads are torn off
    hang_at: int | None = None  # bytes after which a download goes on no more
    spoiled: int = 0  # downloads that come with a wrong byte
    commit: str = COMMIT  # what it says its newest commit is
    backwards: bool = False  # whether it tells of files in another order than it is asked
    forgets: str = ""  # a file that it lists and then tells nothing of


@dataclass(frozen=True)
class Request:
    """What the hub was asked."""

    method: str
    path: str
    range: str


class Hub:
    """Repositories by name, and every request so far."""

    def __init__(self) -> None:
        self.repositories: dict[str, Repository] = {}
        self.requests: list[Request] = []
        self.sent: dict[str, int] = {}  # bytes of a file's content that went out
        self.released = threading.Event()  # downloads that hang end
        self.endpoint = ""

    def downloads(self, ending: str) -> list[Request]:
        """The requests for the content of files whose path ends so."""
        return [each for each in self.requests if each.method == "GET" and each.path.endswith(ending)]


@contextmanager
def running() -> Iterator[Hub]:
    """A hub that answers while the block runs."""
    hub = Hub()

    class Handler(_Handler):
        pass

    Handler.hub = hub
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    hub.endpoint = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    try:
        yield hub
    finally:
        hub.released.set()
        server.shutdown()
        thread.join()
        server.server_close()


class _Handler(BaseHTTPRequestHandler):
    hub: Hub
    protocol_version = "HTTP/1.1"

    def do_HEAD(self) -> None:
        self._answer()

    def do_GET(self) -> None:
        self._answer()

    def do_POST(self) -> None:
        self._answer(self.rfile.read(int(self.headers.get("Content-Length", 0))))

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the base class's name
        """Nothing: the requests are kept."""

    def _answer(self, body: bytes = b"") -> None:
        url = urlsplit(self.path)
        path = unquote(url.path)
        self.hub.requests.append(Request(self.command, path, self.headers.get("Range", "")))
        found = re.match(r"/(?:api/)?datasets/([^/]+/[^/]+)(?:/|$)(.*)", path)
        repository = self.hub.repositories.get(found[1]) if found else None
        if found is None or repository is None:
            return self._refuse(401 if "authorization" not in self.headers else 404, "RepoNotFound")
        if repository.busy:
            repository.busy -= 1
            return self._refuse(429, "", {"Retry-After": "0"})
        kind, _, rest = found[2].partition("/")
        revision, _, name = rest.partition("/")
        if revision and revision not in ("main", COMMIT):
            return self._refuse(404, "RevisionNotFound")
        if kind == "resolve":
            return self._file(repository, name)
        if kind == "tree":
            return self._json(_tree(repository, name, deep="recursive" in url.query))
        if kind == "paths-info":
            paths = parse_qs(body.decode()).get("paths") or json.loads(body)["paths"]
            known = [each for each in paths if each in repository.files and each != repository.forgets]
            known = known[::-1] if repository.backwards else known
            return self._json([_entry(each, repository.files[each]) for each in known])
        names = [{"rfilename": each} for each in repository.files]
        return self._json({"id": found[1], "sha": repository.commit, "private": False, "siblings": names, "tags": []})

    def _file(self, repository: Repository, name: str) -> None:
        data = repository.files.get(name)
        if repository.gated and not name.endswith(".md"):
            return self._refuse(repository.gated, "GatedRepo")
        if data is None:
            return self._refuse(404, "EntryNotFound")
        common = {"X-Repo-Commit": COMMIT, "ETag": f'"{_oid(data)}"', "Accept-Ranges": "bytes"}
        if self.command == "HEAD":
            return self._head(200, common | {"Content-Length": str(len(data))})
        if repository.busy_files and not name.endswith(".md"):
            repository.busy_files -= 1
            return self._refuse(429, "", {"Retry-After": "0"})
        asked = re.match(r"bytes=(\d+)-", self.headers.get("Range", ""))
        start = int(asked[1]) if asked else 0
        whole = len(data)
        if start and start >= whole:
            return self._head(416, {"Content-Range": f"bytes */{whole}", "Content-Length": "0"})
        if repository.spoiled and not name.endswith(".md"):
            repository.spoiled -= 1
            data = data[:-1] + bytes([data[-1] ^ 1])
        ranged = {"Content-Range": f"bytes {start}-{whole - 1}/{whole}"} if asked else {}
        self._head(206 if asked else 200, common | ranged | {"Content-Length": str(whole - start)})
        torn = repository.resets.pop(0) if repository.resets and not name.endswith(".md") else None
        stop = torn if torn is not None else repository.hang_at if repository.hang_at is not None else whole
        self.wfile.write(data[start : max(start, stop)])
        self.wfile.flush()
        self.hub.sent[name] = self.hub.sent.get(name, 0) + max(0, stop - start)
        if torn is not None:  # a reset, not an end: what a cut cable or a restarted proxy looks like
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self.connection.close()
            self.close_connection = True
        elif stop < whole:
            self.hub.released.wait(60)
            self.close_connection = True
        return None

    def _json(self, value: Any) -> None:
        data = json.dumps(value).encode()
        self._head(200, {"Content-Type": "application/json", "Content-Length": str(len(data))})
        self.wfile.write(data)

    def _refuse(self, status: int, code: str, headers: dict[str, str] | None = None) -> None:
        self._head(status, {"X-Error-Code": code, "Content-Length": "0", **(headers or {})})

    def _head(self, status: int, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in headers.items():
            if value or name == "Content-Length":
                self.send_header(name, value)
        self.end_headers()


def _oid(data: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()


def _entry(path: str, data: bytes) -> dict[str, Any]:
    """A file as the hub lists it: large ones by SHA-256, others as git names them."""
    entry: dict[str, Any] = {"type": "file", "path": path, "oid": _oid(data), "size": len(data)}
    if len(data) > 1000:
        entry["lfs"] = {"oid": hashlib.sha256(data).hexdigest(), "size": len(data), "pointerSize": 100}
    return entry


def _tree(repository: Repository, folder: str, *, deep: bool) -> list[dict[str, Any]]:
    prefix = f"{folder.strip('/')}/" if folder.strip("/") else ""
    entries: dict[str, dict[str, Any]] = {}
    for path, data in repository.files.items():
        if not path.startswith(prefix):
            continue
        parts = path[len(prefix) :].split("/")
        for depth in range(1, len(parts)):
            name = prefix + "/".join(parts[:depth])
            if deep or depth == 1:
                entries[name] = {"type": "directory", "path": name, "oid": "0" * 40, "size": 0}
        if deep or len(parts) == 1:
            entries[path] = _entry(path, data)
    return list(entries.values())

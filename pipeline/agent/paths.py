"""Where the agent keeps its files. Standard library only: the keeper and the bridge import it too."""

from __future__ import annotations

import contextlib
import hashlib
import os
import stat

SOCKET_PATH_LIMIT = 107  # bytes that fit into a sockaddr_un
MOUNTS = "/proc/self/mounts"
NETWORK_FILE_SYSTEMS = (
    "nfs", "nfs4", "cifs", "smb3", "9p", "afs", "beegfs", "ceph", "fuse", "fuseblk", "glusterfs", "gpfs", "lustre",
    "virtiofs", "wekafs",
)  # fmt: skip


class UnsafeFolderError(Exception):
    """The runtime directory, or a socket in it, belongs to somebody else or is open to others."""


def runtime_path(workdir: str | os.PathLike[str]) -> str:
    """The path of the runtime directory of a work directory, whether it exists or not."""
    real = os.path.realpath(workdir)
    digest = hashlib.sha256(os.fsencode(real)).hexdigest()[:12]
    return f"/tmp/draftdeck-{os.getuid()}-{digest}"  # noqa: S108 - owner and mode are checked before use


def runtime_dir(workdir: str | os.PathLike[str]) -> str:
    """Make the runtime directory (0700) where it is missing; UnsafeFolderError when it is not ours alone."""
    return make_private(runtime_path(workdir))


def make_private(path: str) -> str:
    """Make a directory (0700) where it is missing; UnsafeFolderError when it is not ours alone."""
    with contextlib.suppress(FileExistsError):
        os.mkdir(path, 0o700)
    check_private(path)
    return path


def check_private(path: str) -> None:
    """Raise UnsafeFolderError unless ``path`` is a real directory of ours with mode 0700."""
    found = os.lstat(path)
    if not stat.S_ISDIR(found.st_mode):
        raise UnsafeFolderError(f"{path} is not a directory; remove it")
    _check_ours(path, found, "700")


def check_socket(path: str) -> None:
    """Raise UnsafeFolderError unless ``path`` is a socket of ours that only we may use; OSError where there is none."""
    found = os.lstat(path)
    if not stat.S_ISSOCK(found.st_mode):
        raise UnsafeFolderError(f"{path} is not a socket; remove it")
    _check_ours(path, found, "600")


def _check_ours(path: str, found: os.stat_result, mode: str) -> None:
    if found.st_uid != os.getuid():
        raise UnsafeFolderError(f"{path} belongs to user {found.st_uid}, not {os.getuid()}; have it removed")
    if stat.S_IMODE(found.st_mode) & 0o077:
        raise UnsafeFolderError(f"{path} has mode {stat.S_IMODE(found.st_mode):o}; run: chmod {mode} {path}")


def socket_path(workdir: str | os.PathLike[str], *, read_only: bool = False) -> str:
    """The agent's socket, or the one that can only be read from."""
    return os.path.join(runtime_path(workdir), "read.sock" if read_only else "agent.sock")


def agent_dir(workdir: str | os.PathLike[str]) -> str:
    """``<workdir>/agent``: the current release, the start script, and the journal on a local file system."""
    return os.path.join(os.path.realpath(workdir), "agent")


def journal_path(workdir: str | os.PathLike[str]) -> str:
    """The journal: in the work directory, or in the runtime directory where that is a network file system."""
    folder = runtime_path(workdir) if on_network(os.path.realpath(workdir)) else agent_dir(workdir)
    return os.path.join(folder, "journal.db")


def on_network(path: str) -> bool:
    """True when ``path`` lies on a network or FUSE file system, where SQLite's locks cannot be trusted."""
    return file_system(path).split(".")[0] in NETWORK_FILE_SYSTEMS


def file_system(path: str) -> str:
    """The kind of file system that a real path lies on: "ext4", "nfs4", "fuse.juicefs"."""
    return _mount(path)[1]


def mount_point(path: str) -> str:
    """The folder that the file system of a real path is mounted at. It itself is not asked, for it may hang."""
    return _mount(path)[0]


def _mount(path: str) -> tuple[str, str]:
    where, kind = "", ""
    with open(MOUNTS, encoding="utf-8", errors="replace") as file:
        for line in file:
            _, point, found, *_ = line.split(" ")
            point = point.replace("\\040", " ")
            inside = path == point or path.startswith(point.rstrip("/") + "/")
            if inside and len(point) >= len(where):
                where, kind = point, found
    return where, kind


def release_dir(workdir: str | os.PathLike[str], release: str) -> str:
    """The folder of a deployed release; it holds ``pipeline/``."""
    return os.path.join(os.path.realpath(workdir), "releases", release)


def current_release(workdir: str | os.PathLike[str]) -> str:
    """The release the agent starts from, as ``agent/current`` names it; "" when there is none."""
    try:
        with open(os.path.join(agent_dir(workdir), "current"), encoding="utf-8", errors="replace") as file:
            return file.read().strip()
    except FileNotFoundError:
        return ""


def own_root() -> str:
    """The folder that this very code was loaded from; it holds ``pipeline/``."""
    return os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


def code_root(workdir: str | os.PathLike[str]) -> str:
    """The folder the agent is to be started from: the current release, else where this code lies."""
    current = current_release(workdir)
    root = release_dir(workdir, current) if current else ""
    return root if root and os.path.isdir(os.path.join(root, "pipeline")) else own_root()


def jobs_dir(workdir: str | os.PathLike[str]) -> str:
    """It holds a folder for each job."""
    return os.path.join(os.path.realpath(workdir), "jobs")


def attempt_dir(workdir: str | os.PathLike[str], job: str, number: int) -> str:
    """The folder of one attempt of a job."""
    return os.path.join(jobs_dir(workdir), job, str(number))


def attempt_numbers(job_folder: str | os.PathLike[str]) -> list[int]:
    """The attempts that have a folder there, in no order; "²" is a digit too, but no number."""
    try:
        names = os.listdir(job_folder)
    except (FileNotFoundError, NotADirectoryError):
        return []
    return [int(name) for name in names if name.isascii() and name.isdecimal()]


def set_current_release(workdir: str | os.PathLike[str], release: str) -> None:
    """Make ``release`` the one the agent starts from."""
    folder = agent_dir(workdir)
    os.makedirs(folder, exist_ok=True)
    temporary = os.path.join(folder, f".current.{os.getpid()}")
    with open(temporary, "w", encoding="utf-8") as file:
        file.write(release + "\n")
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, os.path.join(folder, "current"))

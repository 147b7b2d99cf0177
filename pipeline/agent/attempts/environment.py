"""A job's environment and its secrets.

An SSH session does not have the image's ENV. A job's variables are those of pid 1 where they can be read, else the
login shell's, then the job's own. A secret is a name in the config; its value is read here, when the job starts, from a
file that only its owner can read, else from pid 1's environment. Values are never logged.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import pwd
import re
import subprocess
import threading
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final

from pipeline.agent.attempts.secret_files import MissingSecret, read_secret
from pipeline.agent.paths import runtime_path
from pipeline.progress import PROGRESS_VARIABLE
from pipeline.protocol import JobSpec

MASKED: Final = "***"
LOGIN_WAIT_S: Final = 10.0
LOGIN_RETRY_S: Final = 60.0

_SESSION: Final = ("HOME", "USER", "LOGNAME", "SHELL")
_VOLATILE: Final = re.compile(
    r"SSH_.*|XDG_.*|DBUS_.*|DISPLAY|TERM|TMUX.*|STY|OLDPWD|PWD|SHLVL|_|LS_COLORS|DRAFTDECK_.*"
)
"""Variables of one login, which a job must not depend on."""
_TELLING: Final = re.compile(r"(?i)TOKEN(_|$)|SECRET|PASSW|CREDENTIAL|API_?KEY|ACCESS_?KEY|_KEY$|_PAT$")
_MARK: Final = "draftdeck-environment"

_log = logging.getLogger(__name__)


def job_environment(
    spec: JobSpec, *, release_dir: str | Path, attempt_dir: str | Path, runtime: str | Path | None = None
) -> dict[str, str]:
    """Everything a job starts with, secret values included. Raises MissingSecret or SecretRefused.

    The attempt's folder is ``<workdir>/jobs/<job>/<attempt>``, which tells the runtime directory unless it is given.
    """
    folder = Path(attempt_dir)
    if runtime is None:
        runtime = runtime_path(folder.parents[2])
    first = first_process_environment() or {}
    env = {**base_environment(first), **spec.env}
    inherited = env.get("PYTHONPATH")
    env["PYTHONPATH"] = os.pathsep.join([str(release_dir), *([inherited] if inherited else [])])
    env.setdefault("PYTHONUNBUFFERED", "1")
    env.setdefault("PYTHONFAULTHANDLER", "1")
    env[PROGRESS_VARIABLE] = str(folder / "progress.jsonl")
    for name in spec.secrets:
        value = read_secret(runtime, name)
        value = first.get(name) if value is None else value
        if value is None:
            raise MissingSecret(name)
        env[name] = value
    return env


def base_environment(first: Mapping[str, str]) -> dict[str, str]:
    """The variables of pid 1 over those of the login; who and where the user is comes from the login."""
    login = {**_kept(os.environ), **_kept(login_environment())}
    env = {**login, **_kept(first)}
    env.update({name: login[name] for name in _SESSION if name in login})
    env["PATH"] = _joined(first.get("PATH"), login.get("PATH"), os.environ.get("PATH")) or os.defpath
    return env


def first_process_environment() -> dict[str, str] | None:
    """The environment pid 1 was started with: in a container, the image's. None where it cannot be read."""
    try:
        data = Path("/proc/1/environ").read_bytes()
    except OSError:
        _say_once("the environment of pid 1 cannot be read: jobs get the login shell's")
        return None
    return parse_environment(data)


class LoginShell:
    """What the user's login shell sets: read once; a shell that told nothing is asked again a minute later.

    A slow shell is not killed, only no longer waited for: what its profile starts may hold locks that would be left.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._known: Mapping[str, str] | None = None
        self._asking: threading.Thread | None = None
        self._asked_at = float("-inf")

    def environment(self) -> Mapping[str, str]:
        """The variables, none as long as the shell does not answer. The first call may take seconds."""
        with self._lock:
            if self._asking is None or (not self._asking.is_alive() and self._known is None and self._may_ask_again()):
                self._asked_at = time.monotonic()
                self._asking = threading.Thread(target=self._ask, name="login-shell", daemon=True)
                self._asking.start()
            asking, left = self._asking, self._asked_at + LOGIN_WAIT_S - time.monotonic()
        asking.join(max(0.0, left))
        if asking.is_alive():
            _say_once(f"the login shell {_shell()} does not tell its environment within {LOGIN_WAIT_S:.0f} s")
        return self._known or {}

    def _may_ask_again(self) -> bool:
        return time.monotonic() >= self._asked_at + LOGIN_RETRY_S

    def _ask(self) -> None:
        self._known = _ask_login_shell()


def _shell() -> str:
    return os.environ.get("SHELL") or _password_entry().pw_shell or "/bin/sh"


def _ask_login_shell() -> Mapping[str, str] | None:
    shell = _shell()
    argv = [shell, "-l", "-c", f"echo {_MARK}; exec env -0"]
    try:
        done = subprocess.run(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            check=False,
        )
    except OSError as error:
        _say_once(f"the login shell {shell} does not start: {error.strerror}")
        return None
    if done.returncode != 0:
        _say_once(f"the login shell {shell} does not tell its environment: exit code {done.returncode}")
        return None
    return parse_environment(done.stdout.rpartition(f"{_MARK}\n".encode())[2])


LOGIN: Final = LoginShell()
login_environment = LOGIN.environment


def parse_environment(data: bytes) -> dict[str, str]:
    """NUL-separated NAME=value pairs; what is not text, or not a pair, is left out."""
    found = {}
    for pair in data.split(b"\0"):
        with contextlib.suppress(UnicodeDecodeError):
            name, equals, value = pair.decode().partition("=")
            if equals and name:
                found[name] = value
    return found


def mask(env: Mapping[str, str], secrets: Iterable[str]) -> dict[str, str]:
    """The environment as it may be shown: no value of a secret, nor of what is named like one."""
    named = frozenset(secrets)
    values = sorted((env[name] for name in named if env.get(name)), key=len, reverse=True)
    shown = {}
    for name, value in env.items():
        if name in named or _TELLING.search(name):
            shown[name] = MASKED
            continue
        for secret in values:
            if len(secret) >= 4:
                value = value.replace(secret, MASKED)
        shown[name] = re.sub(r"(?<=://)[^/@\s]+(?=@)", MASKED, value)
    return shown


# --- Helpers --------------------------------------------------------------------------------------------------------


def _password_entry() -> pwd.struct_passwd:
    try:
        return pwd.getpwuid(os.getuid())
    except KeyError:  # a container may run under a number that has no name
        return pwd.struct_passwd(("", "", os.getuid(), os.getgid(), "", "/", "/bin/sh"))


def _kept(env: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in env.items() if not _VOLATILE.fullmatch(name)}


def _joined(*paths: str | None) -> str:
    folders = [folder for path in paths if path for folder in path.split(os.pathsep) if folder]
    return os.pathsep.join(dict.fromkeys(folders))


@functools.cache
def _say_once(text: str) -> None:
    _log.info("%s", text)

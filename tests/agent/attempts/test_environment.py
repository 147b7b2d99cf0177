from __future__ import annotations

import json
import logging
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.agent.attempts import environment
from pipeline.agent.attempts.environment import LoginShell, base_environment, job_environment, mask, parse_environment
from pipeline.agent.attempts.secret_files import MissingSecret, SecretRefused, read_secret, write_secret
from pipeline.protocol import JobSpec

ROOT = Path(__file__).parents[3]


@pytest.fixture
def runtime(tmp_path: Path) -> Path:
    folder = tmp_path / "runtime"
    folder.mkdir(mode=0o700)
    return folder


def _environment(tmp_path: Path, runtime: Path, **spec: object) -> dict[str, str]:
    return job_environment(
        JobSpec("prep:B5", "prep", ("x",), **spec),  # type: ignore[arg-type]
        release_dir=tmp_path / "releases" / "abc",
        attempt_dir=tmp_path / "jobs" / "prep:B5" / "3",
        runtime=runtime,
    )


def test_a_job_gets_what_it_needs_to_report(tmp_path: Path, runtime: Path) -> None:
    env = _environment(tmp_path, runtime, env={"NCCL_PROTO": "LL", "EMPTY": ""})
    assert env["NCCL_PROTO"] == "LL"
    assert env["EMPTY"] == ""
    assert env["PYTHONPATH"].split(os.pathsep)[0] == str(tmp_path / "releases" / "abc")
    assert (env["PYTHONUNBUFFERED"], env["PYTHONFAULTHANDLER"]) == ("1", "1")
    assert env["DRAFTDECK_PROGRESS"] == str(tmp_path / "jobs" / "prep:B5" / "3" / "progress.jsonl")
    assert env["HOME"]
    assert env["PATH"]


def test_the_jobs_own_variables_win(tmp_path: Path, runtime: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NCCL_ALGO", "Tree")
    own = {"NCCL_ALGO": "Ring", "PYTHONUNBUFFERED": "0", "PYTHONPATH": "/more", "DRAFTDECK_PROGRESS": "/elsewhere"}
    env = _environment(tmp_path, runtime, env=own)
    assert env["NCCL_ALGO"] == "Ring"
    assert env["PYTHONUNBUFFERED"] == "0"
    assert env["PYTHONPATH"].split(os.pathsep)[0].endswith("abc")
    assert env["PYTHONPATH"].split(os.pathsep)[-1] == "/more"
    assert env["DRAFTDECK_PROGRESS"].endswith("progress.jsonl")


def test_nothing_of_one_login_reaches_a_job(tmp_path: Path, runtime: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("SSH_CONNECTION", "SSH_AUTH_SOCK", "DISPLAY", "TMUX", "XDG_SESSION_ID", "DRAFTDECK_PROGRESS_OLD"):
        monkeypatch.setenv(name, "x")
    env = _environment(tmp_path, runtime)
    assert not [name for name in env if name.startswith(("SSH_", "XDG_", "TMUX"))]
    assert "DISPLAY" not in env
    assert "DRAFTDECK_PROGRESS_OLD" not in env


def test_the_image_wins_but_the_user_is_the_logins(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environment, "login_environment", dict)
    for name, value in {"HOME": "/home/op", "USER": "op", "LOGNAME": "op", "SHELL": "/bin/bash"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("PATH", "/usr/bin:/opt/venv/bin")
    monkeypatch.setenv("CUDA_HOME", "/usr/local/cuda-11")
    monkeypatch.setenv("HF_HOME", "/login/hf")
    env = base_environment(
        {
            "HOME": "/root", "USER": "root", "SHELL": "/bin/sh", "PATH": "/opt/venv/bin:/usr/local/cuda/bin",
            "LD_LIBRARY_PATH": "/usr/local/cuda/lib64", "CUDA_HOME": "/usr/local/cuda", "PWD": "/",
        }
    )  # fmt: skip
    assert (env["HOME"], env["USER"], env["LOGNAME"], env["SHELL"]) == ("/home/op", "op", "op", "/bin/bash")
    assert env["PATH"] == "/opt/venv/bin:/usr/local/cuda/bin:/usr/bin"
    assert env["LD_LIBRARY_PATH"] == "/usr/local/cuda/lib64"
    assert env["CUDA_HOME"] == "/usr/local/cuda"
    assert env["HF_HOME"] == "/login/hf"
    assert "PWD" not in env


def test_the_image_of_a_real_container_is_read_from_its_first_process(tmp_path: Path, runtime: Path) -> None:
    unshare = shutil.which("unshare")
    if unshare is None:
        pytest.skip("no unshare here")
    code = f"""
import json, os, sys
from pathlib import Path
from pipeline.agent.attempts.environment import job_environment
from pipeline.protocol import JobSpec
spec = JobSpec("a", "prep", ("x",), secrets=("IMAGE_TOKEN",))
print(json.dumps(job_environment(spec, release_dir="r", attempt_dir="{tmp_path}/jobs/a/1", runtime={str(runtime)!r})))
"""
    inner = ["env", "-i", "HOME=/home/op", "PATH=/usr/bin:/bin", "ONLY_LOGIN=1", sys.executable, "-c", code]
    image = {
        "IMAGE_VARIABLE": "from the image",
        "IMAGE_TOKEN": "t0ken",
        "HOME": "/image",
        "PATH": "/image/bin:/usr/bin",
    }
    done = subprocess.run(
        [unshare, "--fork", "--pid", "--mount-proc", "sh", "-c", '"$@"; exit $?', "sh", *inner],
        env=image, cwd=ROOT, capture_output=True, timeout=60,
    )  # fmt: skip
    if done.returncode != 0 and b"unshare" in done.stderr:
        pytest.skip(f"namespaces cannot be made here: {done.stderr.decode().strip()}")
    assert done.returncode == 0, done.stderr.decode()
    env = json.loads(done.stdout)
    assert env["IMAGE_VARIABLE"] == "from the image"
    assert env["IMAGE_TOKEN"] == "t0ken"
    assert env["HOME"] == "/home/op"
    assert env["PATH"].startswith("/image/bin:")


def test_the_login_shell_is_asked_past_what_its_profile_prints(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / ".profile").write_text("echo welcome; export FROM_PROFILE='two words'; export EMPTY=\n")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("SHELL", "/bin/sh")
    shell = LoginShell()
    monkeypatch.setattr(environment, "login_environment", shell.environment)
    login = shell.environment()
    assert login["FROM_PROFILE"] == "two words"
    assert login["EMPTY"] == ""
    assert "FROM_PROFILE" in base_environment({})


@pytest.mark.parametrize("shell", ["/bin/false", "/no/such/shell"])
def test_a_login_shell_that_does_not_answer_is_done_without(
    shell: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("SHELL", shell)
    monkeypatch.setenv("LEFT", "over")
    with caplog.at_level(logging.INFO):
        assert LoginShell().environment() == {}
    assert shell in caplog.text
    assert base_environment({})["LEFT"] == "over"


def test_a_login_shell_that_is_slow_is_not_waited_for_and_heard_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    go = tmp_path / "go"
    (tmp_path / ".profile").write_text(f"while [ ! -e {go} ]; do sleep 0.05; done; export LATE=told\n")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("SHELL", "/bin/sh")
    monkeypatch.setattr(environment, "LOGIN_WAIT_S", 0.2)
    shell = LoginShell()
    assert shell.environment() == {}
    go.touch()
    deadline = time.monotonic() + 20
    while shell.environment().get("LATE") != "told":
        assert time.monotonic() < deadline
        time.sleep(0.02)


@given(st.dictionaries(st.text("ABC_", min_size=1), st.text(st.characters(exclude_characters="\0"))))
def test_an_environment_is_read_as_it_was_written(env: dict[str, str]) -> None:
    data = b"".join(f"{name}={value}\0".encode(errors="replace") for name, value in env.items())
    expected = {name: value.encode(errors="replace").decode() for name, value in env.items()}
    assert parse_environment(data) == expected


@given(st.binary(max_size=80))
def test_an_environment_of_rubbish_is_read_without_complaint(data: bytes) -> None:
    for name, value in parse_environment(data).items():
        assert name
        assert "\0" not in name + value
        (name + value).encode()


# --- Secrets ---------------------------------------------------------------------------------------------------------


def test_a_secret_is_kept_for_its_owner_alone(tmp_path: Path, runtime: Path) -> None:
    assert read_secret(runtime, "HF_TOKEN") is None
    write_secret(runtime, "HF_TOKEN", "hf_first")
    write_secret(runtime, "HF_TOKEN", "hf_second, with ü\n")
    assert read_secret(runtime, "HF_TOKEN") == "hf_second, with ü\n"
    folder = runtime / "secrets"
    assert folder.stat().st_mode & 0o777 == 0o700
    assert (folder / "HF_TOKEN").stat().st_mode & 0o777 == 0o600
    assert [entry.name for entry in folder.iterdir()] == ["HF_TOKEN"]
    assert _environment(tmp_path, runtime, secrets=("HF_TOKEN",))["HF_TOKEN"] == "hf_second, with ü\n"


def test_a_secret_without_a_value_says_how_to_set_it(tmp_path: Path, runtime: Path) -> None:
    with pytest.raises(MissingSecret, match="draftdeck secret set NO_SUCH_TOKEN") as error:
        _environment(tmp_path, runtime, secrets=("NO_SUCH_TOKEN",))
    assert error.value.name == "NO_SUCH_TOKEN"


def test_a_secret_that_others_can_reach_is_refused(tmp_path: Path, runtime: Path) -> None:
    write_secret(runtime, "HF_TOKEN", "hf_1")
    path = runtime / "secrets" / "HF_TOKEN"
    path.chmod(0o640)
    with pytest.raises(SecretRefused, match="mode 640; run: chmod 600"):
        _environment(tmp_path, runtime, secrets=("HF_TOKEN",))
    path.chmod(0o600)
    if os.getuid() == 0:
        os.chown(path, 12345, -1)
        with pytest.raises(SecretRefused, match="belongs to user 12345"):
            read_secret(runtime, "HF_TOKEN")
        os.chown(path, 0, -1)
    path.unlink()
    path.symlink_to("/etc/hostname")
    with pytest.raises(SecretRefused, match="set it anew"):
        read_secret(runtime, "HF_TOKEN")
    path.unlink()
    path.mkdir()
    with pytest.raises(SecretRefused):
        read_secret(runtime, "HF_TOKEN")


def test_a_folder_of_secrets_that_others_can_reach_is_refused(runtime: Path) -> None:
    (runtime / "secrets").mkdir()
    (runtime / "secrets").chmod(0o755)
    with pytest.raises(SecretRefused, match="mode 755; run: chmod 700"):
        write_secret(runtime, "HF_TOKEN", "hf_1")
    (runtime / "secrets" / "HF_TOKEN").touch(0o600)
    with pytest.raises(SecretRefused, match="mode 755"):
        read_secret(runtime, "HF_TOKEN")


@pytest.mark.parametrize("name", ["", "../x", "A B", "1A", "A=B", "A\n", "Ä"])
def test_a_secrets_name_is_a_variables_name(runtime: Path, name: str) -> None:
    with pytest.raises(ValueError, match="is not a variable's name"):
        write_secret(runtime, name, "x")
    with pytest.raises(ValueError, match="is not a variable's name"):
        read_secret(runtime, name)


@pytest.mark.parametrize("value", ["", "a\0b"])
def test_a_secrets_value_must_fit_into_an_environment(runtime: Path, value: str) -> None:
    with pytest.raises(ValueError, match="HF_TOKEN"):
        write_secret(runtime, "HF_TOKEN", value)


def test_no_value_is_logged(tmp_path: Path, runtime: Path, caplog: pytest.LogCaptureFixture) -> None:
    write_secret(runtime, "HF_TOKEN", "hf_very_secret")
    with caplog.at_level(logging.DEBUG):
        _environment(tmp_path, runtime, secrets=("HF_TOKEN",))
        (runtime / "secrets" / "HF_TOKEN").chmod(0o644)
        with pytest.raises(SecretRefused) as error:
            _environment(tmp_path, runtime, secrets=("HF_TOKEN",))
    assert "hf_very_secret" not in caplog.text
    assert "hf_very_secret" not in str(error.value)


def test_what_is_shown_holds_no_secret() -> None:
    env = {
        "HF_TOKEN": "hf_abcdef", "HEADER": "Bearer hf_abcdef", "WANDB_API_KEY": "w1", "AWS_SECRET_ACCESS_KEY": "w2",
        "DB_PASSWORD": "w3", "HTTPS_PROXY": "http://op:pass@proxy:3128/", "NCCL_PROTO": "LL", "SHORT": "x", "XS": "axb",
        "TOKENIZERS_PARALLELISM": "false", "PATH": "/usr/bin",
    }  # fmt: skip
    shown = mask(env, ("HF_TOKEN", "SHORT"))
    assert shown == {
        "HF_TOKEN": "***", "HEADER": "Bearer ***", "WANDB_API_KEY": "***", "AWS_SECRET_ACCESS_KEY": "***",
        "DB_PASSWORD": "***", "HTTPS_PROXY": "http://***@proxy:3128/", "NCCL_PROTO": "LL", "SHORT": "***", "XS": "axb",
        "TOKENIZERS_PARALLELISM": "false", "PATH": "/usr/bin",
    }  # fmt: skip
    assert env["HF_TOKEN"] == "hf_abcdef"

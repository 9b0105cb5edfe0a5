"""What a request brings along acts on the command only: variables, arguments, modules, programs, files."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from execserver.runtime_paths import ExecServerRuntimePaths
from tests.sandbox.attacks.ground import Ground
from tests.support.roots import give
from tests.support.ways import Way

FAKES = ("bwrap", "rg", "sh", "env", "git", "python3", "codex-linux-sandbox", "true", "newuidmap", "mount")
MODULES = (
    "os",
    "sys",
    "json",
    "socket",
    "struct",
    "ctypes",
    "stat",
    "errno",
    "sitecustomize",
    "usercustomize",
)


def traps(folder: Path, mark: Path, user: int) -> Path:
    """Make programs, modules and shell files that leave a mark where only an unconfined process can."""
    folder.mkdir()
    for name in FAKES:
        (folder / name).write_text(f"#!/bin/sh\necho {name} >> {mark}\n")
        (folder / name).chmod(0o755)
    for name in (*MODULES, "execserver", "helpers"):
        (folder / f"{name}.py").write_text(f"open({str(mark)!r}, 'a').write({name!r})\n")
    (folder / "rc").write_text(f"echo rc >> {mark}\n")
    return give(folder, user)


def variables(folder: Path) -> list[bytes]:
    """Return every variable that makes some program of the usual ones load something."""
    values = {
        "PATH": f"{folder}:/usr/bin:/bin",
        "LD_PRELOAD": f"{folder}/evil.so",
        "LD_LIBRARY_PATH": f"{folder}",
        "LD_AUDIT": f"{folder}/audit.so",
        "LD_DEBUG_OUTPUT": f"{folder}/debug",
        "PYTHONPATH": f"{folder}",
        "PYTHONHOME": f"{folder}",
        "PYTHONSTARTUP": f"{folder}/os.py",
        "PYTHONUSERBASE": f"{folder}",
        "BASH_ENV": f"{folder}/rc",
        "ENV": f"{folder}/rc",
        "TMPDIR": f"{folder}",
        "HOME": f"{folder}",
        "XDG_RUNTIME_DIR": f"{folder}",
        "GCONV_PATH": f"{folder}",
        "TZ": f"{folder}/rc",
        "EXECSERVER_SETTINGS": '{"spawn_timeout_s": 0}',
        "EXECSERVER_CACHE_DIR": f"{folder}",
        "_EXECSERVER_KEPT_LD_PRELOAD": f"{folder}/evil.so",
        "SSL_CERT_FILE": f"{folder}/rc",
        "BWRAP": f"{folder}/bwrap",
    }
    return [f"{name}={value}".encode() for name, value in values.items()]


def test_variables_act_on_the_command_only(any_way: Way, ground: Ground) -> None:
    mark = ground.folder / "mark"
    folder = traps(ground.ws / "traps", mark, any_way.user)
    done = ground.run(["/bin/cat", "f"], env=variables(folder), cwd=ground.ws)
    assert (done.out, done.code) == ("mine", 0)
    assert not mark.exists()
    # The loader complains for each program it starts with them: for the command, and for nothing before it.
    assert done.err.count("LD_PRELOAD") == 1
    ground.check_unharmed()


def test_a_folder_full_of_modules_is_not_imported_from(any_way: Way, ground: Ground) -> None:
    mark = ground.folder / "mark"
    folder = traps(ground.ws / "traps", mark, any_way.user)
    done = ground.run(["/bin/cat", "../f"], cwd=folder)
    assert (done.out, done.code) == ("mine", 0)
    assert not mark.exists()


@pytest.mark.parametrize(
    "argv",
    [
        ["--dev-bind", "/", "/", "--", "/bin/sh"],
        ["--help"],
        ["--", "/bin/cat", "f"],
        ["-c", "id"],
        ["--argv0", "x", "/bin/sh"],
        ["--bind", "/", "/", "/bin/cat", "f"],
        ["--execserver-zygote"],
        ["--codex-run-as-fs-helper"],
    ],
)
def test_arguments_are_a_programs_and_no_options(few_ways: Way, ground: Ground, argv: list[str]) -> None:
    done = ground.run(argv)
    assert done.code in (1, 101)
    assert argv[0] in done.err
    assert done.out == ""


@pytest.mark.parametrize("text", ["a b", "a\nb", "$(id)", "`id`", "; id", "\x01\x7f", "-- x", "é\u202e"])
def test_arguments_and_variables_arrive_as_they_are(few_ways: Way, ground: Ground, text: str) -> None:
    done = ground.run(
        ["/bin/sh", "-c", 'printf "%s|%s" "$1" "$V"', "sh", text],
        env=[b"PATH=/usr/bin:/bin", b"V=" + text.encode()],
    )
    assert done.out == f"{text}|{text}"


def test_the_sandbox_command_takes_nothing_from_its_environment(tmp_path: Path) -> None:
    """Called by name with a hostile environment and folder; its program runs confined or not at all."""
    mark = tmp_path / "mark"
    folder = traps(tmp_path / "traps", mark, os.geteuid())
    command = [os.fsdecode(word) for word in ExecServerRuntimePaths.detect().command("codex-linux-sandbox")]
    profile = (
        '{"type":"managed","network":"restricted","file_system":{"type":"restricted","entries":'
        '[{"path":{"type":"special","value":{"kind":"root"}},"access":"read"}]}}'
    )
    env = dict(one.decode().split("=", 1) for one in variables(folder))
    for name in ("LD_PRELOAD", "LD_AUDIT", "LD_LIBRARY_PATH"):
        del env[name]  # these act before any program can do something about it
    done = subprocess.run(
        [
            *(*command, "--sandbox-policy-cwd", "/", "--permission-profile", profile),
            *("--", "/bin/sh", "-c", f"echo x > {mark}; exit 5"),
        ],
        cwd=folder,
        env=env,
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
    )
    assert not mark.exists(), mark.read_text()
    assert done.returncode in (5, 2, 1, 101), done
    assert done.returncode in (2, 5)


def test_the_doctor_takes_nothing_from_its_folder(tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    folder = traps(tmp_path / "traps", mark, os.geteuid())
    script = str(Path(ExecServerRuntimePaths.detect().program_folder(), "execserver", "__main__.py"))
    done = subprocess.run(
        [sys.executable, "-I", "-S", script, "doctor"],
        cwd=folder,
        env={"PATH": f"{folder}:/usr/bin:/bin", "PYTHONPATH": str(folder)},
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
    )
    assert "What enforces which policy" in done.stdout
    assert not mark.exists()

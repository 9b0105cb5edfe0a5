"""The driver: when it installs, and what it says when it cannot.  No network."""

from __future__ import annotations

import importlib.metadata
import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from packaging.markers import default_environment
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import build
from tools import environment, problems
from tools.environment import fingerprint, pins, prepare
from tools.interpreter import best_build
from tools.problems import Problem, explain_pip, explain_venv, from_os_error

ROOT = Path(build.ROOT)
RUN_FILES = [ROOT / "requirements.txt"]
DEV_FILES = [ROOT / "requirements.txt", ROOT / "requirements-dev.txt"]
ALL_FILES = [*DEV_FILES, ROOT / "requirements-compiler.txt"]


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A project folder with pins that this interpreter happens to meet."""
    pytest_version = importlib.metadata.version("pytest")
    (tmp_path / "requirements.txt").write_text(f"# why\npytest=={pytest_version}  # a test\n\n")
    (tmp_path / "requirements-dev.txt").write_text("")
    return tmp_path


@pytest.fixture
def adopted(project: Path) -> Path:
    """The project with an environment someone else has made."""
    prefix = project / ".venv"
    (prefix / "bin").mkdir(parents=True)
    (prefix / "bin" / "python3").write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} "$@"\n')
    (prefix / "bin" / "python3").chmod(0o755)
    return project


def test_an_environment_that_meets_the_pins_is_adopted(
    adopted: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(environment, "_run", lambda *_: pytest.fail("nothing had to be installed"))
    found = prepare(adopted, "run")
    assert found.python == adopted / ".venv" / "bin" / "python3"
    assert (found.site_packages / "pytest").is_dir()
    assert (adopted / ".venv" / ".execserver-run").read_text() == fingerprint([adopted / "requirements.txt"])
    assert not (adopted / ".venv" / ".execserver-dev").exists()


def test_the_larger_set_marks_the_smaller_one(adopted: Path) -> None:
    prepare(adopted, "dev")
    assert (adopted / ".venv" / ".execserver-run").exists()
    assert (adopted / ".venv" / ".execserver-dev").exists()


def test_an_up_to_date_environment_needs_no_writing(adopted: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    prepare(adopted, "run")
    monkeypatch.setattr(environment, "_complete", lambda *_: pytest.fail("it was complete"))
    monkeypatch.setattr(os, "access", lambda *_: False)
    assert prepare(adopted, "run").python.exists()


def test_a_changed_pin_is_installed_once(adopted: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    prepare(adopted, "run")
    (adopted / "requirements.txt").write_text("no-such-package==1.0\n")
    commands = []
    missing = iter([["no-such-package==1.0"], []])
    monkeypatch.setattr(environment, "_unmet", lambda *_: next(missing))
    monkeypatch.setattr(environment, "_run", lambda command, explain: commands.append((command, explain)))
    prepare(adopted, "run")
    prepare(adopted, "run")
    [(command, explain)] = commands
    assert command[1:5] == ["-I", "-m", "pip", "install"]
    assert command[-2:] == ["-r", str(adopted / "requirements.txt")]
    assert "--no-deps" in command
    assert explain is explain_pip


def test_a_failed_installation_leaves_no_marker(adopted: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (adopted / "requirements.txt").write_text("no-such-package==1.0\n")

    def fail(command: list[str], explain: object) -> None:
        raise Problem("no network", "connect")

    monkeypatch.setattr(environment, "_run", fail)
    with pytest.raises(Problem, match="no network"):
        prepare(adopted, "run")
    assert not (adopted / ".venv" / ".execserver-run").exists()


def test_a_missing_environment_is_made(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    commands = []
    monkeypatch.setattr(environment, "_run", lambda command, explain: commands.append(command))
    with pytest.raises(Problem, match="does not run") as raised:
        prepare(project, "run")
    assert commands == [[best_build(), "-I", "-m", "venv", "--clear", str(project / ".venv")]]
    assert f"remove {project / '.venv'}" in raised.value.cure


def test_a_dangling_interpreter_is_made_anew(adopted: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    prepare(adopted, "run")
    (adopted / ".venv" / "bin" / "python3").unlink()
    (adopted / ".venv" / "bin" / "python3").symlink_to("/no/such/python")
    monkeypatch.setattr(environment, "_run", lambda command, explain: None)
    with pytest.raises(Problem, match="does not run"):
        prepare(adopted, "run")


def test_a_folder_that_cannot_be_written_is_named(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "access", lambda *_: False)
    with pytest.raises(Problem) as raised:
        prepare(project, "run")
    assert raised.value.what == f"cannot write into {project}"
    assert "copy the project" in raised.value.cure


def test_a_folder_of_somebody_else_is_told_with_its_owner(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "access", lambda *_: False)
    monkeypatch.setattr(os, "geteuid", lambda: project.stat().st_uid + 1)
    with pytest.raises(Problem) as raised:
        prepare(project, "run")
    assert raised.value.what.startswith(f"cannot write into {project}, which belongs to ")


def test_a_python_that_is_too_new_takes_an_older_one(
    project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    older = tmp_path / "python3.14"
    older.symlink_to(sys.executable)
    monkeypatch.setattr(sys, "version_info", (3, 99, 0))
    monkeypatch.setenv("PATH", str(tmp_path))
    commands = []
    monkeypatch.setattr(environment, "_run", lambda command, explain: commands.append(command))
    with pytest.raises(Problem, match="does not run"):
        prepare(project, "run")
    assert commands[0][:4] == [str(older), "-I", "-m", "venv"]


def test_a_python_that_is_too_new_is_told_with_the_cure(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "version_info", (3, 99, 0))
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(Problem) as raised:
        prepare(project, "run")
    assert raised.value.what == "this is Python 3.99, and the pinned packages have builds for 3.11 to 3.14"
    assert "apt install python3.14 python3.14-venv" in raised.value.cure


def test_a_second_driver_waits_for_the_first(project: Path) -> None:
    code = (
        "import sys; sys.path.insert(0, sys.argv[1])\n"
        "from pathlib import Path\nfrom tools.environment import locked\n"
        "with locked(Path(sys.argv[2]), 'waiting for another'): print('in', flush=True)\n"
    )
    with environment.locked(project, "waiting"):
        second = subprocess.Popen(
            [sys.executable, "-c", code, str(ROOT), str(project)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert second.stderr is not None
        assert "waiting for another" in second.stderr.readline()
        assert second.poll() is None
    output, _ = second.communicate(timeout=20)
    assert (second.returncode, output) == (0, "in\n")


@pytest.mark.parametrize(
    ("output", "what", "cure"),
    [
        ("No module named venv", "its venv module is missing", "apt install python3-venv"),
        (
            "The virtual environment was not created because ensurepip is not available",
            "venv",
            "python3-venv",
        ),
        (
            "Error: Command '['/p/.venv/bin/python3', '-m', 'ensurepip']' returned non-zero exit status 1.",
            "where pip is put into it",
            "250 MB",
        ),
        ("something else", "something else", "remove .venv"),
        ("Error: [Errno 28] No space left on device", "no space left", "250 MB"),
        ("Error: [Errno 13] Permission denied: '/p/.venv'", "cannot be written", "chown -R"),
    ],
)
def test_a_failed_venv_is_explained(output: str, what: str, cure: str) -> None:
    problem = explain_venv(output)
    assert what in problem.what
    assert cure in problem.cure


@pytest.mark.parametrize(
    ("output", "what", "cure"),
    [
        ("... NewConnectionError('...: Failed')", "could not be downloaded", "PIP_INDEX_URL"),
        ("Temporary failure in name resolution", "could not be downloaded", "network"),
        ("ERROR: No matching distribution found for x==1 (from versions: 0.9)", "no build", "another Python"),
        ("a\nb\nerror: boom", "boom", "put that right"),
        ("ERROR: ... OSError: [Errno 28] No space left on device", "no space left", "TMPDIR"),
        ("ERROR: ... [Errno 13] Permission denied: '/p/.venv/x'", "cannot be written", "chown -R"),
        ("error: metadata-generation-failed", "compiling it failed", "python3-dev"),
    ],
)
def test_a_failed_pip_is_explained(output: str, what: str, cure: str) -> None:
    problem = explain_pip(output)
    assert what in problem.what
    assert cure in problem.cure


@pytest.mark.parametrize(
    ("error", "what"),
    [
        (PermissionError(13, "denied", "/x/y"), "cannot write /x/y"),
        (OSError(30, "read-only"), "cannot write /p"),
        (OSError(28, "full"), "no space left for /p/.venv"),
        (OSError(28, "full", "/p/dist/x"), "no space left for /p/dist/x"),
        (OSError(5, "broken"), "broken"),
    ],
)
def test_an_os_error_is_explained(error: OSError, what: str) -> None:
    assert what in from_os_error(error, Path("/p")).what


def test_a_problem_is_told_with_its_cure(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(arguments: list[str]) -> int:
        raise Problem("it is raining", "wait")

    monkeypatch.setitem(build.VERBS, "lint", fail)
    assert build.main(["lint"]) == 1
    assert capsys.readouterr().err == "build.py: it is raining\n  What to do: wait\n"


def test_a_write_error_of_a_verb_is_told_without_traceback(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(arguments: list[str]) -> int:
        raise PermissionError(13, "denied", "/dist")

    monkeypatch.setitem(build.VERBS, "build", fail)
    assert build.main(["build"]) == 1
    assert "cannot write /dist" in capsys.readouterr().err


def test_help_lists_every_verb(capsys: pytest.CaptureFixture[str]) -> None:
    assert build.main(["--help"]) == 0
    shown = capsys.readouterr().out
    for verb in build.VERBS:
        assert f"build.py {verb} " in shown
    assert build.main([]) == 2
    assert build.main(["deploy"]) == 2
    assert "there is no `deploy`; there are demo, run, test, build" in capsys.readouterr().err


def test_an_argument_too_many_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    assert build.main(["lint", "x"]) == 1
    assert "`lint` takes no arguments, got x" in capsys.readouterr().err


def test_an_old_python_hands_over_to_a_newer_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    newer = tmp_path / "python3.13"
    newer.symlink_to(sys.executable)
    broken = tmp_path / "python3.14"
    broken.write_text("#!/bin/sh\nexit 1\n")
    broken.chmod(0o755)
    started = []
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(build, "MINIMUM_PYTHON", (99, 0))
    monkeypatch.setattr(os, "execv", lambda path, argv: started.append((path, argv)))
    build.main(["run", "--listen", "stdio"])
    assert started[0] == (str(newer), [str(newer), build.__file__, "run", "--listen", "stdio"])


def test_without_a_newer_python_the_cure_is_told(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.setattr(build, "MINIMUM_PYTHON", (99, 0))
    assert build.main(["run"]) == 1
    shown = capsys.readouterr().err
    assert "3.11 or newer is needed" in shown
    assert "apt install" in shown


def test_run_becomes_the_server_that_users_get(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    started = []
    monkeypatch.setattr(build, "_built", lambda: ("/dist/execserver", None))
    monkeypatch.setattr(os, "execv", lambda path, argv: started.append((path, argv)))
    build.run(["--listen", "stdio"])
    assert started == [("/dist/execserver", ["/dist/execserver", "--listen", "stdio"])]


# The tests load the official MCP client without its web servers, its sign-in and its checks of schemas.
LEFT_OUT = {
    f"mcp needs {name}"
    for name in (
        *("httpx2", "jsonschema", "pyjwt", "python-multipart", "sse-starlette", "starlette", "uvicorn"),
    )
}


def test_every_dependency_of_a_pin_is_pinned() -> None:
    for files in (RUN_FILES, DEV_FILES):
        pinned = {canonicalize_name(pin.partition("==")[0]) for pin in pins(files)}
        here = {**{name: str(value) for name, value in default_environment().items()}, "extra": ""}
        missing = {
            f"{name} needs {requirement.name}"
            for name in pinned
            for requirement in map(Requirement, importlib.metadata.requires(name) or [])
            if requirement.marker is None or requirement.marker.evaluate(here)
            if canonicalize_name(requirement.name) not in pinned
        }
        assert missing <= LEFT_OUT


def test_every_pin_is_exact_and_says_why() -> None:
    for file in ALL_FILES:
        for line in file.read_text().splitlines():
            if line and not line.startswith("#"):
                pin, _, reason = line.partition("#")
                assert Requirement(pin.strip()).specifier.prereleases is not True
                assert pin.count("==") == 1
                assert reason.strip(), pin


def test_a_comment_does_not_cause_an_installation(tmp_path: Path) -> None:
    one, other = tmp_path / "one", tmp_path / "other"
    one.write_text("a==1 # x\nb==2\n")
    other.write_text("# y\na==1\n\nb==2")
    assert fingerprint([one]) == fingerprint([other])
    assert problems.Problem("what", "cure").cure == "cure"


@pytest.mark.parametrize(
    ("words", "targets"),
    [
        ([], []),
        (["--record"], []),
        (["--all"], ["aarch64", "x86_64"]),
        (["--target", "aarch64"], ["aarch64"]),
    ],
)
def test_files_for_other_machines_are_built_when_asked_for(words: list[str], targets: list[str]) -> None:
    assert build._targets(words) == targets


def test_a_target_without_a_machine_is_a_mistake() -> None:
    with pytest.raises(Problem, match="takes one kind of machine"):
        build._targets(["--target"])

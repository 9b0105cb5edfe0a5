"""`execserver self-test`: it passes here, and each failure is told exactly, with what to do about it."""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import gevent
import pytest

from execserver import __version__, cli_help
from execserver.verbs import self_test
from tests.support.programs import write_program, write_script
from tests.support.server_process import interrupts_not_ignored
from tests.support.source import ROOT
from tests.support.waiting import wait_until

SCRIPT = str(ROOT / "execserver" / "__main__.py")
STEPS = [
    "start the server",
    "connect to it",
    "run a command with pipes",
    "run a command in a terminal",
    "write, read and remove files",
    "look for a sandbox",
    "stop the server",
]


def run(*command: str | Path, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command, env={**os.environ, **(env or {})}, capture_output=True, text=True, timeout=50, check=False
    )


def check_success(done: subprocess.CompletedProcess[str], command: str) -> None:
    assert (done.returncode, done.stderr) == (0, "")
    first, *steps, last = done.stdout.splitlines()
    assert first == f"execserver {__version__}, started as {command}"
    assert [re.sub(r" +\d+ ms$", "", step).strip() for step in steps] == STEPS
    assert re.fullmatch(r"OK in \d+ ms", last)


def test_it_passes_from_source() -> None:
    done = run(sys.executable, "-I", SCRIPT, "self-test")
    check_success(done, f"{sys.executable} -I {SCRIPT}")


def test_it_passes_through_a_link_to_an_installed_program(tmp_path: Path) -> None:
    program = write_program(Path(os.path.realpath(tmp_path), "execserver"))
    (tmp_path / "codex-exec-server").symlink_to(program)
    check_success(run(tmp_path / "codex-exec-server", "self-test"), str(program))


def test_it_leaves_no_file_behind(tmp_path: Path) -> None:
    done = run(sys.executable, "-I", SCRIPT, "self-test", env={"TMPDIR": str(tmp_path)})
    assert done.returncode == 0
    assert os.listdir(tmp_path) == []


def test_a_server_that_does_not_start_is_quoted() -> None:
    done = run(sys.executable, "-I", SCRIPT, "self-test", env={"EXECSERVER_SETTINGS": '{"nope":1}'})
    assert (done.returncode, done.stderr) == (1, "")
    assert done.stdout.splitlines()[1:] == [
        "FAILED: start the server: it ended with status 1 and printed no URL",
        "  | Error: there is no setting nope",
        "  What to do: start it by hand with --log-level debug and read what it says",
    ]


def test_without_devices_the_cure_names_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(os, "devnull", str(tmp_path / "null"))
    assert failure(tmp_path / "x", monkeypatch, capsys) == [
        f"FAILED: start the server: there is no {tmp_path}/null",
        "  What to do: mount a /dev that has at least null, zero, random and tty",
    ]


def failure(program: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> list[str]:
    """Run the test on a program that is not in order; return what it says after the steps that went well."""
    monkeypatch.setattr(self_test, "start_command", lambda: [str(program)])
    monkeypatch.setattr(sys, "argv", ["execserver"])
    kept = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        assert self_test.main() == 1
    finally:
        for number, handler in kept.items():
            signal.signal(number, handler)
        gevent.idle()  # the client's socket is closed in the loop, which nothing else runs here
    lines = capsys.readouterr().out.splitlines()
    return lines[next(index for index, line in enumerate(lines) if line.startswith("FAILED")) :]


def test_a_server_that_says_something_else_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    program = write_script(tmp_path / "x", "echo hello; exec sleep 60")
    assert failure(program, monkeypatch, capsys)[0] == (
        "FAILED: start the server: it printed 'hello' instead of its URL"
    )


def test_a_server_that_says_nothing_is_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(self_test, "START_LIMIT_S", 2.0)
    program = write_script(tmp_path / "x", "echo thinking >&2; exec sleep 60")
    assert failure(program, monkeypatch, capsys)[:2] == [
        "FAILED: start the server: it printed no URL within 2 s",
        "  | thinking",
    ]


def test_a_server_that_cannot_be_reached_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    program = write_script(tmp_path / "x", "echo ws://127.0.0.1:1; exec sleep 60")
    said = failure(program, monkeypatch, capsys)
    assert said[0].startswith("FAILED: connect to it: cannot connect to ws://127.0.0.1:1: ")
    assert said[1] == (
        "  What to do: let programs of this machine reach each other on 127.0.0.1 (is the interface `lo` up?)"
    )


@pytest.mark.parametrize(
    ("argument", "told"),
    [
        (
            "codex-fs",
            "FAILED: run a command with pipes: exit code 3, stdout b'', stderr b'no\\n'",
        ),
        (
            "--version",
            "FAILED: run a command in a terminal: exit code 3, output b'no\\r\\n'",
        ),
    ],
)
def test_a_command_that_does_not_work_is_told(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    argument: str,
    told: str,
) -> None:
    broken = f"if sys.argv[1:] == [{argument!r}]:\n    sys.stderr.write('no\\n')\n    sys.exit(3)\n"
    program = write_program(tmp_path / "execserver", broken)
    assert failure(program, monkeypatch, capsys)[0] == told


def test_a_temporary_folder_that_takes_nothing_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("tempfile.tempdir", "/proc/self")
    said = failure(write_program(tmp_path / "execserver"), monkeypatch, capsys)
    assert said[0].startswith("FAILED: write, read and remove files: [Errno 2] No such file or directory")
    assert said[1].startswith("  What to do: set TMPDIR to a folder this user may write to")


def test_a_server_that_does_not_end_well_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    broken = "import os\nend = os._exit\nif '--listen' in sys.argv:\n    os._exit = lambda status: end(9)\n"
    program = write_program(tmp_path / "execserver", broken)
    assert failure(program, monkeypatch, capsys) == [
        "FAILED: stop the server: it ended with status 9",
        "  What to do: please report this with the output of this command",
    ]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_an_interrupted_test_ends_its_server(tmp_path: Path, number: int) -> None:
    pid_file = tmp_path / "pid"
    write_script(tmp_path / "server", f"echo $$ >{shlex.quote(str(pid_file))}; exec sleep 60")
    before = (
        f"import os\nif '--listen' in sys.argv:\n    os.execv({str(tmp_path / 'server')!r}, ['server'])\n"
    )
    program = write_program(tmp_path / "execserver", before)
    with interrupts_not_ignored():
        test = subprocess.Popen([program, "self-test"], stdout=subprocess.DEVNULL)
    with test:
        wait_until(lambda: pid_file.exists() and pid_file.read_text().endswith("\n"))
        test.send_signal(number)
        assert test.wait(20) == 130
    assert not Path(f"/proc/{pid_file.read_text().strip()}").exists()


def test_wrong_usage_exits_with_2() -> None:
    done = run(sys.executable, "-I", SCRIPT, "self-test", "now")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == (
        "error: unexpected argument 'now' found\n\nUsage: execserver self-test\n\n"
        "For more information, try '--help'.\n"
    )


def test_help_is_the_programs_help() -> None:
    done = run(sys.executable, "-I", SCRIPT, "self-test", "--help")
    assert (done.returncode, done.stdout, done.stderr) == (0, cli_help.HELP, "")

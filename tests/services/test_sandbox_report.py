"""The server asks the doctor in a process of its own, once."""

from __future__ import annotations

import json
import logging
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import gevent
import pytest

from execserver.protocol.errors import InternalError
from execserver.runtime_paths import ExecServerRuntimePaths
from execserver.sandbox.backends.bwrap import Bwrap, encode, identity_of
from execserver.sandbox.backends.report import Check, Report
from execserver.sandbox.backends.selection import answer, policies
from execserver.services.launch.spawner import Spawner
from execserver.services.machine import sandbox_report
from execserver.services.machine.sandbox_report import SandboxReports
from execserver.zygote.confinement import BUBBLEWRAP, LANDLOCK, NATIVE, Confinement
from tests.services import spawning
from tests.support.programs import write_script
from tests.support.roots import FREE_UID, become, in_child

NOTE = "import sys, os; open({!r}, 'a').write(repr(sorted(os.environ)) + '\\n'); print({!r})"
WORKING = Report(native=True, seccomp=True, kernel="6.6.6")


@pytest.fixture
def spawner() -> Iterator[Spawner]:
    with spawning.spawner() as made:
        yield made


def doctor(log: Path, text: str) -> list[bytes]:
    """Return a command that prints a text in the doctor's place, and notes its call."""
    return [os.fsencode(word) for word in (sys.executable, "-I", "-c", NOTE.format(str(log), text))]


def reports(spawner: Spawner, tmp_path: Path, report: Report) -> SandboxReports:
    command = doctor(tmp_path / "calls", json.dumps(answer(report)))
    return SandboxReports(spawner, command, {b"PATH": b"/usr/bin", b"API_KEY": b"secret"})


def calls(tmp_path: Path) -> list[str]:
    return (tmp_path / "calls").read_text().splitlines()


def test_it_is_asked_once_whoever_needs_it_at_the_same_time(spawner: Spawner, tmp_path: Path) -> None:
    asked = reports(spawner, tmp_path, WORKING)
    first, second = (gevent.spawn(asked.report) for _ in range(2))
    assert first.get(timeout=20) is second.get(timeout=20) is asked.report()
    assert asked.report().kernel == "6.6.6"
    assert json.loads(bytes(asked.answer())) == answer(WORKING)
    assert len(calls(tmp_path)) == 1


def test_it_gets_the_search_path_and_no_secret(spawner: Spawner, tmp_path: Path) -> None:
    reports(spawner, tmp_path, WORKING).report()
    assert "PATH" in calls(tmp_path)[0]
    assert "API_KEY" not in calls(tmp_path)[0]


def test_back_ends_have_the_names_of_the_zygote(spawner: Spawner, tmp_path: Path) -> None:
    assert reports(spawner, tmp_path, WORKING).choose(policies()["narrow"]) == Confinement(NATIVE)
    last = SandboxReports(
        spawner, doctor(tmp_path / "2", json.dumps(answer(Report(seccomp=True, landlock_abi=4)))), {}
    )
    assert last.choose(policies()["read-only"]) == Confinement(LANDLOCK)
    refusal = last.choose(policies()["narrow"])
    assert isinstance(refusal, str)
    assert "it cannot hide what exists" in refusal


@pytest.mark.parametrize("text", ["", "no json", '{"kernel":', "{}"])
def test_an_answer_that_is_no_report_is_an_error_and_not_kept(
    spawner: Spawner, tmp_path: Path, text: str
) -> None:
    asked = SandboxReports(spawner, doctor(tmp_path / "calls", text), {})
    for _ in range(2):
        with pytest.raises(InternalError, match="the doctor gave no report"):
            asked.report()
    assert len(calls(tmp_path)) == 2


def test_a_replaced_bubblewrap_is_tried_anew(spawner: Spawner, tmp_path: Path) -> None:
    program = write_script(tmp_path / "bwrap", "exit 0")
    tried = Bwrap(os.fsencode(program), identity_of(program.stat()), True)
    asked = reports(spawner, tmp_path, Report(seccomp=True, bwrap=tried))
    assert asked.choose(policies()["narrow"]) == Confinement(BUBBLEWRAP, detail=encode(tried))
    asked.report()
    assert len(calls(tmp_path)) == 1
    write_script(tmp_path / "bwrap", "exit 1  # another one")
    asked.report()
    assert len(calls(tmp_path)) == 2


def test_one_line_in_the_log_names_the_back_end(
    spawner: Spawner, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "execserver")
    reports(spawner, tmp_path, WORKING).report()
    assert caplog.messages == ["sandboxed requests are enforced by: native"]
    assert caplog.records[0].levelno == logging.INFO


def test_what_is_refused_here_is_a_warning(
    spawner: Spawner, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    blocked = Check("namespaces", False, "", "they are switched off", "switch them on")
    reports(spawner, tmp_path, Report(seccomp=True, checks=(blocked,))).report()
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert "they are switched off" in record.getMessage()
    assert "switch them on" in record.getMessage()


def test_the_real_doctor_answers(spawner: Spawner) -> None:
    command = ExecServerRuntimePaths.detect().command("doctor", "--json")
    asked = SandboxReports(spawner, command, {b"PATH": b"/usr/bin:/bin"})
    assert asked.report().kernel == os.uname().release


def test_in_a_folder_that_is_closed_to_us_the_doctor_is_asked_from_the_root(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def act() -> int:
        os.chdir(tmp_path)
        os.chmod(tmp_path, 0)
        become(FREE_UID if os.geteuid() == 0 else os.geteuid())
        os.write(1, repr(sandbox_report._working_directory()).encode())
        return 0

    assert in_child(act).value == b"/"
    os.chmod(tmp_path, 0o700)
    monkeypatch.chdir(tmp_path)
    assert sandbox_report._working_directory() == os.fsencode(tmp_path)

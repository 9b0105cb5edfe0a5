"""The doctor as people call it: a table, JSON, exit codes; also where things are in the way."""

from __future__ import annotations

import contextlib
import io
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from execserver.dispatch import VERBS, choose
from execserver.runtime_paths import ExecServerRuntimePaths
from execserver.sandbox.backends.report import NATIVE, USER_NAMESPACES, Check, Report
from execserver.sandbox.backends.selection import Refusal, policies
from execserver.sandbox.backends.selection import choose as choose_back_end
from execserver.sandbox.rootfs.builder import RootFailed
from execserver.verbs import doctor
from execserver.zygote.supervision.probe import NOTIFICATION
from execserver.zygote.supervision.stand_in.probe import STAND_INS
from tests.support.roots import FREE_UID, become, in_child
from tests.support.source import ROOT
from tests.support.ways import refuse_user_namespaces


def call(*arguments: str) -> subprocess.CompletedProcess[str]:
    script = str(ROOT / "execserver" / "__main__.py")
    return subprocess.run(
        [sys.executable, "-I", "-S", script, "doctor", *arguments],
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
    )


def test_it_is_a_verb() -> None:
    assert choose(["execserver", "doctor", "--json"]) == (VERBS["doctor"], ["--json"])


def test_the_table_names_every_policy_and_the_exit_code_says_whether_all_are_enforced() -> None:
    done = call()
    rows = done.stdout.partition("What enforces which policy:\n")[2].splitlines()[: len(policies())]
    assert done.stderr == ""
    assert len(rows) == len(policies())
    refused = [row for row in rows if row.startswith("  NO ")]
    assert done.returncode == (1 if refused else 0)


def test_json_holds_the_same() -> None:
    done = call("--json")
    answer = json.loads(done.stdout)
    assert answer["kernel"] == os.uname().release
    assert [policy["name"] for policy in answer["policies"]] == list(policies())
    refused = [policy for policy in answer["policies"] if policy["backEnd"] is None]
    assert done.returncode == (1 if refused else 0)


def test_whether_programs_can_be_watched_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    blocked = Check(NOTIFICATION, False, "", "it is refused", "allow it")
    monkeypatch.setattr(doctor, "check_notification", lambda: blocked)
    report = doctor.probe_machine(os.environb)
    assert report.check(NOTIFICATION) is blocked
    assert "no   notification      it is refused" in doctor.table(report)
    assert all("it is refused" not in str(choose_back_end(plan, report)) for plan in policies().values())


def test_whether_programs_outside_have_stand_ins_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    blocked = Check(STAND_INS, False, "", "it is refused", "allow it")
    monkeypatch.setattr(doctor, "check_stand_ins", lambda: blocked)
    assert "no   stand-ins         it is refused" in doctor.table(doctor.probe_machine(os.environb))


@pytest.mark.parametrize("argument", ["--jsn", "x", "-j"])
def test_a_mistake_is_named(argument: str) -> None:
    done = call(argument)
    assert done.returncode == 2
    assert f"unexpected argument '{argument}' found" in done.stderr
    assert "Usage: execserver doctor [--json]" in done.stderr


def test_help_is_the_programs() -> None:
    done = call("--help")
    assert done.returncode == 0
    assert "doctor" in done.stdout


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can refuse namespaces to others")
def test_what_is_refused_comes_with_blocker_and_cure() -> None:
    def act() -> int:
        refuse_user_namespaces("limit")
        become(FREE_UID)
        sys.argv[1:] = []
        os.environb[b"PATH"] = b"/nowhere"
        text = io.StringIO()
        with contextlib.redirect_stdout(text):
            status = doctor.main()
        os.write(1, text.getvalue().encode())
        return status << 8

    done = in_child(act)
    assert done.code == 1
    assert "user.max_user_namespaces=0" in done.out
    assert "cure: sysctl -w user.max_user_namespaces=15000" in done.out
    assert "NO   workspace-write" in done.out
    assert done.out.count("What to do:") == 1
    assert done.out.rstrip().endswith("sysctl -w user.max_user_namespaces=15000")


def test_a_view_that_cannot_be_made_counts_more_than_all_trials(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> int:
        raise RootFailed("cannot mount the root: Invalid argument (move_mount)")

    monkeypatch.setattr("execserver.zygote.confine.standalone.confine_self_then_call", refuse)
    report = doctor.probe_machine({})
    assert not report.native
    if report.check(USER_NAMESPACES).works:
        assert "Invalid argument (move_mount)" in report.check(NATIVE).blocker
    choice = choose_back_end(policies()["narrow"], report)
    assert isinstance(choice, Refusal)
    assert "Invalid argument (move_mount)" in choice.why


def test_every_cure_is_listed_once() -> None:
    blocked = Check(USER_NAMESPACES, False, "", "they are switched off", "switch them on")
    text = doctor.table(Report(seccomp=True, checks=(blocked,)))
    assert text.count("  - switch them on") == 1


def test_the_programs_folders_are_those_of_its_tree(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where bubblewrap shows nothing else, a file worker finds itself there."""
    words = (
        "/t/lib/ld.so",
        "--library-path",
        "/t/lib",
        "/t/python3",
        "-I",
        "/t/boot.pyc",
        "-1",
        "/x",
        "execserver",
    )
    monkeypatch.setattr(sys, "frozen", words, raising=False)
    paths = ExecServerRuntimePaths.detect()
    assert (paths.program_folder(), paths.program_folders()) == ("/t", ["/t"])
    assert paths.sandbox_program() == b""  # none there
    monkeypatch.setattr(sys, "frozen", words[3:], raising=False)
    assert set(ExecServerRuntimePaths.detect().program_folders()) >= {"/t", sys.base_prefix}


def test_whether_credentials_can_be_masked_is_told_with_the_cure(
    tmp_path: Path,
) -> None:
    report = doctor.probe_machine({b"CODEX_HOME": os.fsencode(tmp_path)})
    assert f"yes  masking           certificates in {tmp_path}/proxy" in doctor.table(report)
    assert "yes  network-proxy     HTTP and SOCKS5 on 127.0.0.1" in doctor.table(report)
    (tmp_path / "proxy").touch()
    text = doctor.table(doctor.probe_machine({b"CODEX_HOME": os.fsencode(tmp_path)}))
    assert f"no   masking           {tmp_path}/proxy is a symlink or no folder; remove it" in text
    assert "cure: make CODEX_HOME and its folder proxy this user's own" in text

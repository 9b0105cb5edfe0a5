"""`record` of `process/start` on a real server, and `execserver audit cast`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from execserver.audit.reading import records, verify
from tests.box.boxes import Person
from tests.support.peer import Json, Peer, RemoteError
from tests.support.running import Outcome, outcome, output_until, run, start, write
from tests.support.server_process import ServerProcess


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("audit") / "log"


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[ServerProcess]:
    with ServerProcess(options=("--audit", str(folder))) as server:
        yield server


@pytest.fixture
def peer(server: ServerProcess) -> Iterator[Peer]:
    with server.connect() as peer:
        peer.open_session()
        yield peer


def cast(folder: Path, name: str) -> tuple[Json, list[Json]]:
    """Return the header and the events of a recording."""
    words = [sys.executable, "-m", "execserver", "audit", "cast", str(folder), name]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60, check=True)
    header, *events = map(json.loads, done.stdout.splitlines())
    return header, events


def text_of(events: list[Json], code: str) -> str:
    return "".join(text for _, kind, text in events if kind == code)


def test_output_is_recorded_and_played(peer: Peer, folder: Path) -> None:
    found = run(peer, "plain", "echo out; echo err >&2; exit 3", record="output")
    assert found.exit_code == 3
    header, events = cast(folder, "plain")
    assert header["command"] == "sh -c 'echo out; echo err >&2; exit 3'"
    assert sorted(text_of(events, "o").split()) == ["err", "out"]
    assert events[-1][1:] == ["x", "3"]
    assert all(interval >= 0 for interval, *_ in events)


def test_a_person_can_have_a_command_recorded(server: ServerProcess, folder: Path, tmp_path: Path) -> None:
    person = Person(tmp_path / "home")
    for kind, typed in (("output", ""), ("all", "hello\n")):
        words = ("run", server.url, "--record", kind, "--", "sh", "-c", "read line; echo got $line")
        done = person.run(*words, stdin=b"hello\n")
        assert (done.returncode, done.stdout, done.stderr) == (0, b"got hello\n", b"")
        *_, name = (each["recording"] for each in records(str(folder)) if "recording" in each)
        _, events = cast(folder, str(name))
        assert (text_of(events, "o"), text_of(events, "i")) == ("got hello\n", typed)


def test_a_person_is_told_where_nothing_is_recorded(tmp_path: Path) -> None:
    person = Person(tmp_path / "home")
    done = person.run("run", "--record", "output", "--", "touch", "ran")
    assert done.returncode != 0
    assert b"this server records no process; its operator can have it do so with --audit" in done.stderr
    assert not (person.home / "ran").exists()
    assert person.run("run", "--record", "input", "--", "true").returncode == 2


def test_its_name_is_in_the_log_which_is_as_whole_as_before(peer: Peer, folder: Path) -> None:
    run(peer, "named", "echo x", record="output")
    (name,) = (
        each["recording"]
        for each in records(str(folder))
        if each.get("process") == "named" and "recording" in each
    )
    assert cast(folder, str(name)) == cast(folder, "named")
    assert verify(str(folder)).torn == 0


def test_input_is_recorded_only_when_it_is_asked_for(peer: Peer, folder: Path) -> None:
    for name in ("output", "all"):
        start(peer, f"in-{name}", "read line; echo got", pipeStdin=True, record=name)
        assert write(peer, f"in-{name}", b"typed\n", "w") == "accepted"
        assert outcome(peer, f"in-{name}").stdout == b"got\n"
    assert text_of(cast(folder, "in-output")[1], "i") == ""
    assert text_of(cast(folder, "in-all")[1], "i") == "typed\n"


def test_what_the_terminal_hides_is_not_recorded(peer: Peer, folder: Path, tmp_path: Path) -> None:
    # What is hidden right behind a write may have been typed as hidden and is left out as well; so the
    # script goes on to hide only when the first line is known to be recorded.
    go_on = tmp_path / "go on"
    os.mkfifo(go_on)
    script = (
        f"echo ready; read shown; read go < '{go_on}'; stty -echo; echo hidden; read secret; stty echo; "
        "echo open; read more"
    )
    start(peer, "tty", script, tty=True, record="all")
    collected = Outcome()
    for number, (needle, line) in enumerate((("ready", "one"), ("hidden", "password"), ("open", "two"))):
        output_until(peer, "tty", needle.encode(), collected)
        write(peer, "tty", f"{line}\n".encode(), f"w{number}")
        if line == "one":
            go_on.write_text("now\n")
    outcome(peer, "tty", collected)
    _, events = cast(folder, "tty")
    assert text_of(events, "i") == "one\ntwo\n"
    assert "password" not in json.dumps(events)


def test_a_new_size_is_recorded(peer: Peer, folder: Path) -> None:
    start(peer, "sized", "read line", tty=True, record="output")
    peer.call("process/resize", {"processId": "sized", "rows": 30, "cols": 100})
    write(peer, "sized", b"\n", "w")
    outcome(peer, "sized")
    assert text_of(cast(folder, "sized")[1], "r") == "100x30"


def test_what_cannot_be_meant_is_refused_and_leaves_nothing(peer: Peer, folder: Path) -> None:
    before = sorted((folder / "recordings").glob("*"))
    for record, argv in (("input", ["true"]), ("output", ["/no/such/program"])):
        with pytest.raises(RemoteError):
            start(peer, "bad", argv, record=record)
    assert sorted((folder / "recordings").glob("*")) == before
    assert run(peer, "bad", "echo on", record=None).stdout == b"on\n"
    done = subprocess.run(
        [sys.executable, "-m", "execserver", "audit", "cast", str(folder), "no-such"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == f"Error: {folder} has no recording no-such\n"


def test_a_server_without_a_log_records_nothing() -> None:
    with ServerProcess() as server, server.connect() as peer:
        peer.open_session()
        with pytest.raises(RemoteError) as refused:
            start(peer, "p", "true", record="output")
    assert refused.value.code == -32602
    assert refused.value.message == "this server records nothing; its operator can have it do so with --audit"

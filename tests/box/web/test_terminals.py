"""Processes and terminals of a page, on a real private box and on a real server."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from execserver.audit.recording import names, read
from tests.box.boxes import Person
from tests.box.web.page import Page, Refused, Web, console
from tests.support.server_process import ServerProcess
from tests.support.waiting import wait_until

OWN = "this machine"


def start(page: Page, script: str, box: str = OWN, **params: object) -> str:
    """Start a shell script on a terminal; return its id."""
    found = page.ask("process.start", box=box, argv=["sh", "-c", script], tty=True, **params)
    return str(found["process_id"])


def look(page: Page, process_id: str, box: str = OWN) -> int:
    """Open a terminal that this page writes to; return its channel."""
    found = page.ask("terminal.open", box=box, process_id=process_id, cols=80, rows=24)
    assert (found["writer"], found["tty"]) == (True, True)
    return int(found["channel"])


def test_a_login_shell_is_typed_into(page: Page) -> None:
    process_id = page.ask("process.start", box=OWN)["process_id"]
    channel = look(page, process_id)
    page.type(channel, b"stty size; echo $((40+2)) $TERM\r")
    assert b"24 80" in page.shown(channel, b"42 xterm-256color")
    page.ask("terminal.resize", channel=channel, cols=100, rows=30)
    page.type(channel, b"stty size\r")
    page.shown(channel, b"30 100")
    page.type(channel, b"exit 7\r")
    assert page.event("terminal.exited", channel=channel)["exit_code"] == 7


def test_another_page_reads_along_and_takes_over(web: Web, page: Page) -> None:
    process_id = start(page, "echo ready; while read -r line; do echo got $line; done")
    first = look(page, process_id)
    page.shown(first, b"ready")
    with web.page() as other:
        found = other.ask("terminal.open", box=OWN, process_id=process_id, cols=80, rows=24)
        second = found["channel"]
        assert found["writer"] is False
        other.shown(second, b"ready")  # what was printed before
        other.type(second, b"nobody hears this\r")
        page.type(first, b"one\r")
        assert b"nobody" not in other.shown(second, b"got one")
        other.ask("terminal.take", channel=second)
        assert page.event("terminal.writer", channel=first)["writer"] is False
        other.type(second, b"two\r")
        page.shown(first, b"got two")
    assert page.event("terminal.writer", channel=first)["writer"] is True  # the other page has left
    page.ask("process.signal", box=OWN, process_id=process_id, signal="KILL")
    page.event("terminal.exited", channel=first)


def test_a_page_that_does_not_read_falls_behind_alone(web: Web, page: Page) -> None:
    process_id = start(page, "stty -opost; read line; head -c 9000000 /dev/zero | tr '\\0' x; echo done")
    channel = look(page, process_id)
    with web.page() as slow:
        # It opens the terminal, and then never reads again.
        slow.ask("terminal.open", box=OWN, process_id=process_id, cols=80, rows=24)
        page.type(channel, b"\r")
        shown = b""
        while b"done" not in shown[-16:]:
            page.output[channel] = b""
            page.until(lambda: page.output[channel])
            shown = shown[-16:] + page.output[channel]
        page.event("terminal.exited", channel=channel)
        gap = slow.event("terminal.gap")
        assert gap["lost_bytes"] > 1_000_000
        slow.event("terminal.exited")
        assert b"done" in b"".join(slow.output.values())


def test_processes_are_listed_with_what_they_use(page: Page) -> None:
    process_id = start(page, "while :; do :; done", name="busy")
    try:

        def listed() -> Any:
            every = page.ask("processes.list", box=OWN)
            return next(each for each in every if each["process_id"] == process_id)

        found = listed()
        assert (found["name"], found["state"], found["tty"], found["own"]) == ("busy", "running", True, True)
        assert found["argv"] == ["sh", "-c", "while :; do :; done"]
        assert found["cpu_percent"] is None
        # Of a process that has just begun, the kernel may have counted no page yet.
        wait_until(lambda: listed()["memory_bytes"] > 0)
        page.ask("usage.follow", box=OWN, on=True)

        def measured() -> list[float]:
            seen = [each for event in page.events for each in event.get("processes", ())]
            ours = [each["cpu_percent"] for each in seen if each["process_id"] == process_id]
            return [percent for percent in ours if percent]

        page.until(measured)
        assert 0 < measured()[0] <= 110
        page.ask("usage.follow", box=OWN, on=False)
    finally:
        page.ask("process.signal", box=OWN, process_id=process_id, signal="KILL")


def test_the_log_is_read_from_its_end(page: Page) -> None:
    script = "for i in 1 2 3 4 5 6; do head -c 100000 /dev/zero | tr '\\0' $i; done; read line"
    process_id = start(page, f"stty -opost; {script}")
    channel = look(page, process_id)
    page.until(lambda: page.output.get(channel, b"").count(b"6") == 100_000)
    latest = page.ask("log", box=OWN, process_id=process_id)
    data = b"".join(base64.b64decode(each["data"]) for each in latest["pieces"])
    assert data.endswith(b"6" * 100_000)
    assert not data.startswith(b"1")
    pages, before = 1, latest["before"]
    while before is not None:
        earlier = page.ask("log", box=OWN, process_id=process_id, before=before)
        pages, before = pages + 1, earlier["before"]
    assert pages > 2
    assert base64.b64decode(earlier["pieces"][0]["data"]).startswith(b"1")
    page.ask("process.signal", box=OWN, process_id=process_id, signal="KILL")


def test_a_kept_command_goes_on_without_the_console(
    person: Person, host: Person, server: ServerProcess
) -> None:
    with console(person, server.url) as web, web.page() as page:
        box = server.url
        ours = start(page, "sleep 1000", box)
        kept = start(page, "echo hello; read line; echo $line; sleep 1000", box, name="kept", keep=True)
        channel = look(page, kept, box)
        page.shown(channel, b"hello")
        page.type(channel, b"typed\r")
        page.shown(channel, b"typed\r\ntyped")
        assert {ours, kept} <= {each["process_id"] for each in page.ask("processes.list", box=box)}
    listed = person.run("ps", server.url, "--json").stdout.decode()
    assert kept in listed
    assert ours not in listed
    assert person.run("kill", server.url, "kept", "-s", "KILL").returncode == 0


def test_nothing_is_kept_on_a_private_box(page: Page) -> None:
    with pytest.raises(Refused, match="nothing goes on there"):
        start(page, "sleep 1000", keep=True)


def test_what_cannot_be_started_is_told(page: Page) -> None:
    with pytest.raises(Refused, match="cannot run /no/such"):
        page.ask("process.start", box=OWN, argv=["/no/such"])
    with pytest.raises(Refused) as refused:
        page.ask("terminal.open", box=OWN, process_id="nothing", cols=80, rows=24)
    assert refused.value.code == "not-found"


def test_a_command_is_recorded_where_the_box_has_an_audit_log(person: Person, tmp_path: Path) -> None:
    folder = tmp_path / "audit"
    with (
        ServerProcess(options=("--audit", str(folder))) as server,
        console(person, server.url) as web,
        web.page() as page,
    ):
        recorded = start(page, "echo hello; read line", server.url, record="all")
        channel = look(page, recorded, server.url)
        page.shown(channel, b"hello")
        page.type(channel, b"typed\r")
        assert page.event("terminal.exited", channel=channel)["exit_code"] == 0
        start(page, "true", server.url)
        wait_until(lambda: b"x" in [code for _, code, _ in read(str(folder), recorded)[1]], 20)
        assert len(names(f"{folder}/recordings")) == 1
    chunks = [(code, data) for _, code, data in read(str(folder), recorded)[1]]
    assert b"".join(data for code, data in chunks if code == b"o").startswith(b"hello\r\n")
    assert (b"i", b"typed\r") in chunks


def test_what_cannot_be_recorded_is_told_and_not_started(page: Page) -> None:
    with pytest.raises(Refused, match="records no process; its operator can have it do so with --audit"):
        start(page, "sleep 1000", record="output")
    with pytest.raises(Refused, match="record is none of output, all"):
        start(page, "sleep 1000", record="errors")


@pytest.fixture
def commands(page: Page) -> Iterator[list[str]]:
    """Ids of processes that are killed at the end."""
    ids: list[str] = []
    yield ids
    for process_id in ids:
        page.ask("process.signal", box=OWN, process_id=process_id, signal="KILL")


def test_input_that_nobody_reads_is_dropped_and_told(page: Page, commands: list[str]) -> None:
    process_id = start(page, "stty raw -echo; echo ready; sleep 1000")
    commands.append(process_id)
    channel = look(page, process_id)
    page.shown(channel, b"ready")
    for _ in range(4):
        page.type(channel, bytes(1024 * 1024))
    assert page.event("terminal.dropped", channel=channel)["bytes"] > 0
    assert page.ask("files.list", box=OWN)["truncated"] is False


@pytest.mark.parametrize("word", ["\udc80", "a\0b", 1, None, "x" * 70_000])
def test_a_word_that_no_command_can_have_is_told(page: Page, word: object) -> None:
    with pytest.raises(Refused) as refused:
        page.ask("process.start", box=OWN, argv=["echo", word])
    assert refused.value.code == "wrong"

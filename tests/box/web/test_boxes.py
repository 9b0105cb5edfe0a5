"""Boxes that do not answer, or go away, and pages meanwhile."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest

from tests.box.boxes import Person, cut_way
from tests.box.web.page import Page, Refused, console
from tests.support.peer import WAIT
from tests.support.server_process import ServerProcess
from tests.support.waiting import wait_until


@pytest.fixture
def silent() -> Iterator[str]:
    """The URL of somebody who accepts connections and says nothing."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield f"ws://127.0.0.1:{listener.getsockname()[1]}"


@pytest.mark.long
def test_a_box_that_says_nothing_delays_no_other(person: Person, silent: str) -> None:
    assert person.run("box", "add", "silent", silent).returncode == 0
    with console(person) as web, web.page() as page:
        call_id = page.begin("files.list", box="silent")
        for _ in range(20):
            assert page.ask("files.list", box="this machine")["path"]
        assert call_id not in page.answers
        with pytest.raises(Refused) as refused:
            page.answer(call_id)
        assert refused.value.code == "unreachable"
        boxes = {each["name"]: each for each in page.ask("boxes.list")}
        assert boxes["silent"]["state"] == "unreachable"
        assert boxes["silent"]["error"]


def test_a_lost_connection_is_told_and_resumed(person: Person, server: ServerProcess) -> None:
    with cut_way(server) as way, console(person, way.url) as web, web.page() as page:
        process_id = page.ask("process.start", box=way.url, argv=["cat"], tty=True)["process_id"]
        channel = page.ask("terminal.open", box=way.url, process_id=process_id, cols=80, rows=24)["channel"]
        page.type(channel, b"before\r")
        page.shown(channel, b"before\r\nbefore")
        way.cut()
        assert page.event("connection", state="lost")["box"] == way.url
        page.event("connection", state="connected")
        page.type(channel, b"after\r")
        page.shown(channel, b"after\r\nafter")


@pytest.mark.long
def test_a_box_that_has_gone_is_told_and_found_again(person: Person) -> None:
    box = f"unix:{person.home}/box"
    first = ServerProcess(listen=f"unix://{person.home}/box")
    try:
        with console(person, box) as web, web.page() as page:
            process_id = page.ask("process.start", box=box, argv=["cat"], tty=True)["process_id"]
            channel = page.ask("terminal.open", box=box, process_id=process_id, cols=80, rows=24)["channel"]
            first.kill()
            page.event("connection", state="lost")
            with ServerProcess(listen=f"unix://{person.home}/box"):
                assert page.event("terminal.exited", channel=channel)["exit_code"] is None
                wait_until(lambda: _works(page, box), WAIT)
    finally:
        first.kill()


def _works(page: Page, box: str) -> bool:
    try:
        return bool(page.ask("files.list", box=box)["path"])
    except Refused:
        return False

"""Who may reach the console, and what its HTTP answers."""

from __future__ import annotations

import json
import os
import signal
import socket
import struct
from pathlib import Path

import pytest

from execserver.box.web.answers import POLICY
from tests.box.boxes import Person, mistaken
from tests.box.web.page import Page, Web
from tests.support.peer import WAIT, ProtocolFault
from tests.support.source import ROOT
from tests.support.waiting import wait_until
from tests.support.ws_peer import TEXT, Ending, WsPeer

OWN = {"name": "this machine"}


def test_the_pages_are_confined(web: Web) -> None:
    answer = web.get()
    assert (answer.status, answer.headers["content-type"]) == (200, "text/html; charset=utf-8")
    assert answer.headers["content-security-policy"] == POLICY
    assert "unsafe" not in POLICY
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.headers["referrer-policy"] == "no-referrer"
    assert answer.headers["cache-control"] == "no-store"
    assert answer.headers["cross-origin-opener-policy"] == "same-origin"
    assert answer.headers["cross-origin-resource-policy"] == "same-origin"


def test_no_page_makes_a_terminal_that_repeats_without_end() -> None:
    pages = ROOT / "execserver" / "box" / "web" / "static"
    made = {page.name: page.read_text().count("new Terminal(") for page in pages.glob("*.js")}
    bounded = {page.name: page.read_text().count("bounded(new Terminal(") for page in pages.glob("*.js")}
    assert made == bounded
    assert {name for name, count in made.items() if count} == {"terminal.js", "recording.js"}


@pytest.mark.parametrize(
    "name",
    [
        "../answers.py",
        "%2e%2e/answers.py",
        "static/index.html",
        "..",
        "nothing.js",
        ".hidden",
        "index",
        "a//b",
    ],
)
def test_other_names_lead_nowhere(web: Web, name: str) -> None:
    assert web.get(name).status == 404


def test_without_the_secret_there_is_nothing(web: Web) -> None:
    secret = web.url.rstrip("/").rpartition("/")[2]
    assert len(secret) == 22
    for path in ("/", f"/{secret}", f"/{secret[:-1]}/", f"/{'A' * 22}/", f"//{secret}/", "/ws", "/readyz"):
        sock = web.raw()
        with sock:
            sock.sendall(f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1:{web.port}\r\n\r\n".encode())
            assert sock.recv(12) == b"HTTP/1.1 404", path


@pytest.mark.parametrize("name", ["evil.example", "localhost:1", "127.0.0.1", "127.0.0.1:1", "[::1]:80", ""])
def test_a_name_that_was_made_to_lead_here_is_refused(web: Web, name: str) -> None:
    assert web.get(Host=name).status == 403


def test_another_site_cannot_use_the_console(web: Web) -> None:
    assert web.get(Origin="https://evil.example").status == 403
    assert web.get(Origin="null").status == 403
    assert web.get("app.js", Sec_Fetch_Site="cross-site").status == 403
    assert web.get("files?box=dev&path=/etc/passwd", Sec_Fetch_Site="same-site").status == 403
    assert web.get("", Sec_Fetch_Site="cross-site").status == 200  # the browser is led to it from a file
    for origin in ("https://evil.example", "null", f"http://localhost:{web.port}", "http://127.0.0.1:1"):
        with pytest.raises(ProtocolFault, match="403 Forbidden"):
            Page.open(web.url, Origin=origin)
    with pytest.raises(ProtocolFault, match="403 Forbidden"):
        WsPeer.connect(f"{web.url.replace('http:', 'ws:')}ws")  # without any
    upload = web.file("dev", b"/tmp/x", "PUT", b"x", Origin="https://evil.example")
    assert upload.status == 403


def test_other_methods_are_refused(web: Web) -> None:
    assert web.get("", "PUT", b"x").status == 405
    assert web.get("", "DELETE").status == 405
    assert web.get("files?box=dev&path=/tmp/x", "POST", b"x").status == 405
    assert web.get("ws", Origin=f"http://127.0.0.1:{web.port}").status == 400


@pytest.mark.parametrize(
    "head",
    [
        b"GET / HTTP/1.1\nHost: x\n\n",
        b"GET /\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\r\n\r\n",
        b"GET / HTTP/1.1\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n",
    ],
)
def test_what_is_no_request_is_refused(web: Web, head: bytes) -> None:
    with web.raw() as sock:
        sock.sendall(head)
        assert sock.recv(12) == b"HTTP/1.1 400"


def test_an_endless_head_is_refused(web: Web) -> None:
    with web.raw() as sock:
        sock.sendall(b"GET / HTTP/1.1\r\nX: " + b"x" * 20_000)
        assert sock.recv(12) == b"HTTP/1.1 431"


def test_a_huge_message_ends_the_page(web: Web) -> None:
    with web.page() as page:
        page.send_raw(struct.pack("!BBQ", 0x80 | TEXT, 0x80 | 127, 2**40))
        assert page.wait_for_end() is Ending.CLOSE_FRAME
        assert page.close_code == 1009


@pytest.mark.parametrize(
    "message",
    ["", "x", "[]", "1", '{"id":1}', '{"id":true,"method":"x"}', "[" * 100_000, '{"id":-1,"method":""}'],
)
def test_what_is_no_call_ends_the_page(web: Web, message: str) -> None:
    with web.page() as page:
        page.send_text(message)
        assert page.wait_for_end() is Ending.CLOSE_FRAME
        assert page.close_code == 1007


def test_a_call_of_the_wrong_kind_is_answered(page: Page) -> None:
    wrong: dict[str, dict[str, object]] = {
        "no.method": {},
        "ports.forward": {"box": "this machine", "port": 1, "address": "\udc80"},
        "files.list": {"box": 1},
        "files.read": {"box": "this machine", "path": "relative"},
        "files.write": {"box": "this machine", "path": "/x", "text": "\ud800"},
        "terminal.open": {"box": "this machine", "process_id": "x", "cols": 0, "rows": True},
        "process.start": {"box": "this machine", "argv": []},
        "process.signal": {"box": "this machine", "process_id": "x", "signal": "KILL; rm"},
    }
    for method, params in wrong.items():
        call_id = page.begin(method, **params)
        page.until(lambda: call_id in page.answers)  # noqa: B023 - called at once
        assert page.answers.pop(call_id)["error"]["code"] == "wrong", method


def test_one_page_too_many_is_told_so(web: Web) -> None:
    pages: list[Page] = []

    def open_all() -> None:
        while len(pages) < 17:
            pages.append(Page.open(web.url))

    try:
        with pytest.raises(ProtocolFault, match="503 Service Unavailable"):
            open_all()
        assert len(pages) in (15, 16)  # one of the test before may still be leaving
    finally:
        for page in pages:
            page.close()


def test_a_box_that_is_none_is_told(page: Page) -> None:
    call_id = page.begin("files.list", box="../x")
    page.until(lambda: call_id in page.answers)
    error = page.answers[call_id]["error"]
    assert (error["code"], error["hint"]) == ("not-found", "execserver box add NAME URL")


def test_it_shows_the_boxes(page: Page) -> None:
    page.ask("files.list", box="this machine")
    found = {each["name"]: each for each in page.ask("boxes.list")}
    assert set(found) == {"this machine", "dev"}
    assert (found["this machine"]["state"], found["this machine"]["default"]) == ("connected", True)
    assert found["dev"]["url"].startswith("ws://127.0.0.1:")
    assert found["dev"]["state"] in ("reachable", "connected")
    assert found["this machine"]["home"].endswith("/a home")


def test_the_browser_is_led_to_the_console_and_nobody_sees_its_url(person: Person) -> None:
    browser = person.home / "browser"
    browser.write_text(
        '#!/bin/sh\necho "$1" >>seen\ncat "${1#file://}" >>seen\nls -l "${1#file://}" >>seen\n'
    )
    browser.chmod(0o755)
    person.environ["BROWSER"] = f"/no/such/browser:'{browser}'"
    running = person.start("web")
    assert running.stdout is not None
    url = running.stdout.readline().decode().strip()
    try:
        wait_until(lambda: b"rw-" in _content(person.home / "seen"), WAIT)
        address, page, status, *_ = _content(person.home / "seen").decode().splitlines()
        assert address.startswith("file:///")
        assert url not in address
        assert f'content="0;url={url}"' in page
        assert status.startswith("-rw------- ")
    finally:
        running.send_signal(signal.SIGTERM)
        running.communicate(timeout=WAIT)
    assert running.returncode == 128 + signal.SIGTERM
    assert not os.path.exists(address.removeprefix("file://"))


def _content(path: Path) -> bytes:
    return path.read_bytes() if path.exists() else b""


def test_a_taken_port_is_told(person: Person) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        done = person.run("web", "--no-open", "--port", str(taken.getsockname()[1]))
    assert done.returncode == 1
    assert b"cannot listen on 127.0.0.1:" in done.stderr


def test_a_box_that_does_not_answer_ends_it(person: Person) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    done = person.run("web", f"ws://127.0.0.1:{port}", "--no-open")
    assert (done.returncode, done.stdout) == (255, b"")


@pytest.mark.parametrize("words", [["a", "b"], ["--port", "x"], ["--port", "65536"], ["--host", "0.0.0.0"]])
def test_wrong_usage_exits_with_2(
    words: list[str], monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    assert mistaken(["web", *words], monkeypatch, capfd).startswith("error: ")


def test_json_of_a_page_may_hold_bytes_that_are_no_text(page: Page) -> None:
    call_id = page.begin("files.read", box="this machine", path="/\udcff")
    page.until(lambda: call_id in page.answers)
    assert json.dumps(page.answers[call_id]["error"]["code"]) == '"not-found"'

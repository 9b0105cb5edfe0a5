"""The door of a listener against the recorded answers of the reference server."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from execserver.access.entry import make_entry
from execserver.access.identity import NOBODY, Identity
from execserver.settings import Settings
from execserver.transports import upgrade as upgrade_module
from execserver.transports.door import Door, Refused
from execserver.wire.handshake import parse_head
from tests.support.raw_http import as_bytes
from tests.support.ws_auth import RECORDED_AT, Case, cases, lay_files

COUNT = len(cases(Path("/")))
PEER = Identity("uid", "1000")


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """The folder with the recorded files."""
    lay_files("31-ws-auth-http", tmp_path)
    return tmp_path


def door_of(case: Case) -> Door:
    return Door(make_entry(dict(zip(case.options[::2], case.options[1::2], strict=True))).authenticator)


@pytest.mark.parametrize("index", range(COUNT))
def test_a_recorded_request_has_its_recorded_answer(
    place: Path, monkeypatch: pytest.MonkeyPatch, index: int
) -> None:
    case = cases(place)[index]
    monkeypatch.setattr(time, "time", lambda: float(RECORDED_AT))
    head = as_bytes(case.request).removesuffix(b"\r\n\r\n")
    reply, identity = upgrade_module._decide(head, Settings(), door_of(case))
    answered, _, body = reply.data.decode().partition("\r\n\r\n")
    status, *fields = answered.split("\r\n")
    headers = dict(field.split(": ", 1) for field in fields)
    headers.pop("date")
    if case.status == 101:
        assert (status[9:12], identity is not None) == ("101", True)
    else:
        assert (status[9:12], headers, body, identity) == (str(case.status), case.headers, case.body, None)


def test_what_the_connection_has_proven_stands_where_nobody_is_asked() -> None:
    request = parse_head(b"GET / HTTP/1.1")
    assert Door().admit(request, 0.0) is NOBODY
    assert Door().admit(request, 0.0, PEER) is PEER


HOSTS = {
    "127.0.0.1:4567": True,
    "127.1.2.3": True,
    "[::1]:80": True,
    "localhost": True,
    "LocalHost:1": True,
    "": False,
    "evil.example": False,
    "127.0.0.1.evil.example": False,
    "localhost.evil.example:4567": False,
    "127.0.0.1@evil.example": False,
    "192.0.2.1": False,
    "[::2]": False,
    "2130706433": False,
    "[::1": False,
    "127.0.0.1, evil.example": False,
}


@pytest.mark.parametrize("host", HOSTS)
def test_on_loopback_the_host_must_be_a_name_of_this_machine(host: str) -> None:
    request = parse_head(f"GET / HTTP/1.1\r\nHost: {host}".encode())
    assert Door().admit(request, 0.0) is NOBODY
    if HOSTS[host]:
        assert Door(loopback=True).admit(request, 0.0) is NOBODY
        return
    with pytest.raises(Refused, match="Host must be a loopback address or localhost") as refused:
        Door(loopback=True).admit(request, 0.0)
    assert refused.value.status == 403


def test_a_request_without_host_is_taken_as_at_the_reference() -> None:
    assert Door(loopback=True).admit(parse_head(b"GET / HTTP/1.1"), 0.0) is NOBODY


def test_an_authenticator_is_asked_in_addition(place: Path) -> None:
    entry = make_entry({"--ws-auth": "capability-token", "--ws-token-file": f"{place}/tok"})
    door = Door(entry.authenticator)
    with pytest.raises(Refused) as refused:
        door.admit(parse_head(b"GET / HTTP/1.1"), 0.0, PEER)
    assert (refused.value.status, refused.value.text) == (401, "missing websocket bearer token")
    shown = parse_head(b"GET / HTTP/1.1\r\nAuthorization: Bearer secret-token-1")
    assert door.admit(shown, 0.0, PEER).way == "token"

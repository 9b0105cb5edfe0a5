"""The binary form of messages, with the client and a real server."""

from __future__ import annotations

import base64
import os
from pathlib import Path
from typing import Any

import gevent
import pytest
from gevent import socket

from execserver.client import ExecServerClient, RemoteProcess
from execserver.protocol import lifting
from execserver.protocol.batches import FsNodeKind, FsWriteEntry
from tests.client.fake_server import FakeServer
from tests.client.test_ports import listener, to_the_end
from tests.support.server_process import OURS

DATA = os.urandom(1 << 20)


@pytest.fixture
def forms(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Whether a binary form was made, for each time it was asked for."""
    made: list[bool] = []
    make = lifting.binary_form

    def noted(text: bytes, data: bytes) -> bytes | None:
        form = make(text, data)
        made.append(form is not None)
        return form

    monkeypatch.setattr(lifting, "binary_form", noted)
    return made


def echoed(client: ExecServerClient) -> bytes:
    """Return what `cat` makes of the data."""
    return bytes(client.start(["cat"], cwd="/", pipe_stdin=True).communicate(DATA).stdout)


def test_long_bytes_go_without_base64_to_who_reads_that(remote: ExecServerClient, forms: list[bool]) -> None:
    assert echoed(remote) == DATA
    assert forms
    assert all(forms)
    del forms[:]
    with listener() as there:
        stream = remote.ports.open("127.0.0.1", there.getsockname()[1])
        far, _ = there.accept()
        reading = gevent.spawn(to_the_end, far)
        stream.send_all(DATA[at : at + 50_000] for at in range(0, len(DATA), 50_000))
        stream.shutdown()
        assert reading.get(timeout=30) == DATA
        far.close()
        stream.close()
    assert len(forms) >= len(DATA) // 50_000
    assert all(forms)


@pytest.mark.parametrize("reverse", [False, True])
def test_forwarded_bytes_come_without_base64(
    remote: ExecServerClient, monkeypatch: pytest.MonkeyPatch, reverse: bool
) -> None:
    taken: list[bool] = []
    apart = lifting._apart

    def noted(message: bytes) -> lifting.Lifted | None:
        found = apart(message)
        taken.append(found is not None)
        return found

    monkeypatch.setattr(lifting, "_apart", noted)
    with listener() as there, socket.socket() as near:
        if reverse:
            opened = remote.ports.listen("127.0.0.1")
            near.connect((opened.address.host, opened.address.port))
            far, stream = near, opened.accept(timeout=20)
        else:
            stream = remote.ports.open("127.0.0.1", there.getsockname()[1])
            far, _ = there.accept()
        assert stream is not None

        def play(sock: Any = far) -> None:
            sock.sendall(DATA)
            sock.shutdown(socket.SHUT_WR)

        sending = gevent.spawn(play)
        assert b"".join(iter(stream.recv, b"")) == DATA
        sending.get(timeout=20)
        far.close()
        stream.close()
    assert len(taken) >= 4
    assert all(taken)


def test_pieces_of_files_go_and_come_without_base64(
    remote: ExecServerClient, forms: list[bool], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    apart = lifting._apart
    taken: list[bool] = []

    def noted(message: bytes) -> lifting.Lifted | None:
        found = apart(message)
        taken.append(found is not None)
        return found

    entry = FsWriteEntry(
        name=b"big", kind=FsNodeKind.FILE, content=DATA, part=b"p", size=len(DATA), mode=0o600
    )
    remote.files.write_parts(tmp_path, [entry])
    assert ((tmp_path / "big").read_bytes(), forms) == (DATA, [True])
    monkeypatch.setattr(lifting, "_apart", noted)
    with remote.open_file(tmp_path / "big") as opened:
        assert opened.read_block(0) == DATA
        assert opened.read_block(len(DATA) - 5) == DATA[-5:]
    assert taken == [True]


def test_blocks_keep_their_base64_for_who_does_not_ask(remote: ExecServerClient, tmp_path: Path) -> None:
    (tmp_path / "big").write_bytes(DATA)
    with remote.open_file(tmp_path / "big") as opened:
        asked = {"handleId": opened.handle_id, "offset": 0, "len": len(DATA)}
        answer = remote._session.request("fs/readBlock", asked)
    assert base64.b64encode(DATA[:600]) in bytes(answer)


def test_they_keep_their_base64_on_lines(forms: list[bool]) -> None:
    with ExecServerClient.connect_stdio([*OURS.argv, "--listen", "stdio"]) as client:
        assert client.extensions.binary_messages
        assert echoed(client) == DATA
    assert forms == []


def test_they_keep_their_base64_for_a_server_of_the_contract(
    fake: FakeServer, process: RemoteProcess, forms: list[bool]
) -> None:
    fake.answers["process/write"] = lambda params: {"status": "accepted"}
    process.write(DATA)
    assert len(fake.asked("process/write")) > 0
    assert forms == []

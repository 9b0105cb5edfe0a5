"""What a file worker keeps after it has served: nothing of a large answer."""

from __future__ import annotations

import _socket
import os
from pathlib import Path

import pytest

from execserver.sandbox.files import worker_records as records
from execserver.sandbox.plan import ROOT_READ_ONLY, SandboxPlan
from execserver.zygote.channel import receive_record, send_record
from execserver.zygote.records import Started
from tests.conftest import LONG
from tests.support.proc import resident_bytes
from tests.support.waiting import wait_until
from tests.zygote.supervised import Supervised

MIB = 1024 * 1024
NAMES = 12_000
GROWN_BYTES = 3 * MIB  # measured: at most 1.5 MiB, and 4.0 to 6.5 where the freed tuples are kept


@pytest.fixture
def large_folder(tmp_path: Path) -> Path:
    """Return a folder of many names, each of which is a link to one file."""
    folder = tmp_path / "large"
    folder.mkdir(0o755)
    (folder / "0").touch()
    for number in range(1, NAMES):
        os.symlink("0", folder / f"{number:0200}")
    return folder


def ask(sock: _socket.socket, request: records.Request) -> records.Reply:
    """Send a request and return the reply to it."""
    send_record(sock, records.encode_request(request))
    while True:
        received = receive_record(sock)
        assert received is not None
        reply = records.decode_reply(received[0])
        if not isinstance(reply, records.Progress):
            return reply


@pytest.mark.timeout(900 if LONG else 180)  # so many names, on a disk that others use
def test_the_memory_of_a_large_listing_is_given_back(zygote: Supervised, large_folder: Path) -> None:
    ours, theirs = _socket.socketpair(_socket.AF_UNIX, _socket.SOCK_SEQPACKET)
    ours.settimeout(30)
    try:
        begun = zygote.ask_worker(SandboxPlan(ROOT_READ_ONLY), [theirs.fileno()])
        theirs.close()
        assert isinstance(begun, Started), begun
        pid = begun.pid
        ask(ours, records.Request(1, records.READ_DIRECTORY, b"/usr"))
        before = resident_bytes(pid)
        for number in range(3):
            reply = ask(ours, records.Request(number, records.READ_DIRECTORY, os.fsencode(large_folder)))
            assert isinstance(reply, records.Entries)
            assert len(reply.entries) == NAMES
        del reply
        wait_until(lambda: resident_bytes(pid) - before < GROWN_BYTES)
    finally:
        ours.close()

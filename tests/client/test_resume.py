"""Lost connections against a real server, through a proxy that cuts them."""

from __future__ import annotations

import hashlib
import shlex
from collections.abc import Iterator
from pathlib import Path

import gevent
import pytest

from execserver.client import (
    Closed,
    ExecServerClient,
    InvalidRequestError,
    NotFoundError,
    Output,
    OutputGap,
    RemoteProcess,
    ResumeFailed,
    SessionState,
    TransportClosed,
)
from tests.client.conftest import QUICK
from tests.client.cutting_proxy import CuttingProxy
from tests.support.server_process import ServerProcess
from tests.support.waiting import wait_until

OPTIONS = QUICK.replace(resume_interval=0.02, resume_window=20.0)
MIB = 1024 * 1024


@pytest.fixture
def proxy(server: ServerProcess) -> Iterator[CuttingProxy]:
    with CuttingProxy(server.url) as proxy:
        yield proxy


@pytest.fixture
def through(proxy: CuttingProxy) -> Iterator[ExecServerClient]:
    """A client behind the proxy."""
    with ExecServerClient.connect(proxy.url, OPTIONS) as client:
        yield client


def resumed(client: ExecServerClient, times: int) -> None:
    wait_until(
        lambda: client.resumptions >= times and client.state is SessionState.OPEN, 20, pause=gevent.sleep
    )


def cut_and_resume(proxy: CuttingProxy, client: ExecServerClient) -> None:
    before = client.resumptions
    proxy.cut()
    resumed(client, before + 1)


def lines_from(process: RemoteProcess) -> bytes:
    return b"".join(event.data for event in process if isinstance(event, Output))


COUNT = "i=0; while [ $i -lt 400 ]; do echo line $i; i=$((i+1)); done"


def test_a_process_goes_on_and_nothing_is_lost(proxy: CuttingProxy, through: ExecServerClient) -> None:
    process = through.start(["sh", "-c", f"read go; {COUNT}; exit 7"], pipe_stdin=True)
    cut_and_resume(proxy, through)
    process.write(b"go\n")
    assert lines_from(process) == b"".join(b"line %d\n" % number for number in range(400))
    assert process.wait() == 7


def test_output_that_was_on_its_way_is_asked_for_again(
    proxy: CuttingProxy, through: ExecServerClient, tmp_path: Path
) -> None:
    done = tmp_path / "done"
    process = through.start(
        ["sh", "-c", f"echo ready; read go; {COUNT}; : > {shlex.quote(str(done))}"], pipe_stdin=True
    )
    assert process.next_event(20) == Output(1, "stdout", b"ready\n")
    writer = gevent.spawn(process.write, b"go\n")
    gevent.sleep(0)
    proxy.swallow = True
    wait_until(done.exists, pause=gevent.sleep)
    cut_and_resume(proxy, through)
    writer.get(timeout=20)
    assert lines_from(process) == b"".join(b"line %d\n" % number for number in range(400))


def test_many_cuts_while_output_streams_lose_nothing(proxy: CuttingProxy, through: ExecServerClient) -> None:
    # The writer waits for the reader every 64 KiB, so that no more is in flight than the server retains.
    script = (
        "import sys\nfor n in range(40):\n"
        "    sys.stdout.buffer.write(bytes([n]) * 65536)\n    sys.stdout.buffer.flush()\n"
        "    sys.stdin.buffer.read(1)\n"
    )
    process = through.start(["python3", "-S", "-c", script], pipe_stdin=True)
    digest, received, acknowledged = hashlib.sha256(), 0, 0
    for event in process:
        if isinstance(event, Output):
            digest.update(event.data)
            received += len(event.data)
        while received >= (acknowledged + 1) * 65536:
            acknowledged += 1
            process.write(b".")
            if acknowledged % 8 == 0:
                proxy.cut()
    assert received == 40 * 65536
    assert digest.digest() == hashlib.sha256(b"".join(bytes([n]) * 65536 for n in range(40))).digest()
    assert process.wait() == 0
    assert through.resumptions >= 4


def test_an_end_that_happened_meanwhile_is_learned(proxy: CuttingProxy, through: ExecServerClient) -> None:
    process = through.start(["sh", "-c", "read go; echo out; exit 5"], pipe_stdin=True)
    proxy.swallow = True
    writer = gevent.spawn(process.write, b"go\n")
    wait_until(lambda: proxy.forwarded > 0, pause=gevent.sleep)
    gevent.sleep(0.05)
    cut_and_resume(proxy, through)
    writer.get(timeout=20)
    assert process.wait(20) == 5
    events = list(process)
    assert b"".join(event.data for event in events if isinstance(event, Output)) == b"out\n"
    assert isinstance(events[-1], Closed)


def test_input_whose_answer_was_lost_is_written_once(proxy: CuttingProxy, through: ExecServerClient) -> None:
    process = through.start(["head", "-n", "3"], pipe_stdin=True)
    for number in range(3):
        proxy.swallow = True
        writer = gevent.spawn(process.write, b"line %d\n" % number)
        gevent.sleep(0.05)
        proxy.cut()
        writer.get(timeout=20)
    assert lines_from(process) == b"line 0\nline 1\nline 2\n"


def test_a_read_whose_answer_was_lost_is_asked_again(proxy: CuttingProxy, through: ExecServerClient) -> None:
    process = through.start(["sh", "-c", "echo once; exec sleep 1000"], collect_output=False)
    assert b"".join(chunk.data for chunk in process.read(after_seq=0, wait=10).chunks) == b"once\n"
    proxy.swallow = True
    reader = gevent.spawn(process.read)
    gevent.sleep(0.05)
    proxy.cut()
    assert [chunk.data for chunk in reader.get(timeout=20).chunks] == [b"once\n"]
    assert process.read().chunks == ()
    process.terminate()


def test_more_output_than_the_server_retains_is_told_as_a_gap(
    proxy: CuttingProxy, through: ExecServerClient, tmp_path: Path
) -> None:
    begun, done = tmp_path / "begun", tmp_path / "done"
    marks = [shlex.quote(str(each)) for each in (begun, done)]
    script = f"read go; : > {marks[0]}; head -c {3 * MIB} /dev/zero; : > {marks[1]}; exit 3"
    process = through.start(["sh", "-c", script], pipe_stdin=True)
    through.start(["true"]).wait(20)
    process.write(b"")
    proxy.open_for_new = False
    proxy.swallow = True
    starter = gevent.spawn(process.write, b"go\n")
    wait_until(begun.exists, pause=gevent.sleep)  # cut earlier, it would not get its input
    proxy.cut()
    wait_until(done.exists, pause=gevent.sleep)
    proxy.open_for_new = True
    starter.get(timeout=20)
    data, gaps = b"", []
    while True:
        try:
            event = process.next_event(20)
        except OutputGap as gap:
            gaps.append(gap)
            continue
        if event is None:
            break
        data += event.data if isinstance(event, Output) else b""
    assert process.wait() == 3
    assert len(gaps) == 1
    assert 0 < len(data) < 3 * MIB
    if through.extensions.output_gaps:
        assert gaps[0].lost_bytes is not None
        assert 0 < gaps[0].lost_bytes <= 3 * MIB


def test_calls_in_flight_fail_and_later_ones_succeed(proxy: CuttingProxy, through: ExecServerClient) -> None:
    proxy.swallow = True
    caller = gevent.spawn(outcome, through)
    gevent.sleep(0.05)
    proxy.cut()
    assert caller.get(timeout=20) is TransportClosed
    assert through.environment_info().shell.path.startswith("/")


def outcome(client: ExecServerClient) -> type[Exception] | None:
    try:
        client.environment_info()
    except TransportClosed as error:
        return type(error)
    return None


def test_an_open_file_is_lost_with_its_connection(
    proxy: CuttingProxy, through: ExecServerClient, tmp_path: Path
) -> None:
    (tmp_path / "f").write_bytes(b"content")
    file = through.open_file(tmp_path / "f")
    assert file.read_block(0, 3) == b"con"
    cut_and_resume(proxy, through)
    with pytest.raises(NotFoundError, match=r"unknown file (read )?handle"):
        file.read_block(0, 3)
    with through.open_file(tmp_path / "f") as again:
        assert list(again) == [b"content"]


def test_another_client_takes_a_session_over_with_its_processes(server: ServerProcess) -> None:
    first = ExecServerClient.connect(server.url, OPTIONS)
    process = first.start(["sh", "-c", "echo hello; read line; echo got $line"], pipe_stdin=True)
    assert process.next_event(20) == Output(1, "stdout", b"hello\n")
    first.detach()
    options = OPTIONS.replace(resume_session_id=first.session_id)
    with ExecServerClient.connect(server.url, options) as second:
        assert second.session_id == first.session_id
        attached = second.attach_process(process.process_id)
        assert attached.next_event(20) == Output(1, "stdout", b"hello\n")
        attached.write(b"it\n")
        assert lines_from(attached) == b"got it\n"
        assert attached.wait() == 0


def test_an_unknown_session_is_refused(server: ServerProcess) -> None:
    options = OPTIONS.replace(resume_session_id="00000000-0000-4000-8000-000000000000")
    with pytest.raises(InvalidRequestError, match="unknown session id"):
        ExecServerClient.connect(server.url, options)


def test_a_server_that_stays_away_ends_the_session(proxy: CuttingProxy) -> None:
    options = OPTIONS.replace(resume_window=0.3)
    client = ExecServerClient.connect(proxy.url, options)
    process = client.start(["sleep", "5"])
    proxy.open_for_new = False
    proxy.cut()
    with pytest.raises(ResumeFailed, match=r"not resumed within 0\.3 s"):
        process.wait(20)
    with pytest.raises(ResumeFailed):
        client.environment_info()
    client.close()

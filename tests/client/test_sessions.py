"""Kept sessions and watched processes with two clients and a real server."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

import gevent
import pytest

from execserver.client import (
    Closed,
    ExecServerClient,
    ExecServerClientConnectOptions,
    Exited,
    InvalidRequestError,
    Output,
    StdinUnavailable,
    UnsupportedByServer,
)
from execserver.protocol.environment import Extensions
from tests.client.conftest import QUICK
from tests.client.cutting_proxy import CuttingProxy
from tests.support.server_process import ServerProcess
from tests.support.waiting import wait_until

T = TypeVar("T")

MEMBERS = set(ExecServerClientConnectOptions.__struct_fields__)


@contextmanager
def connected(server: ServerProcess, **options: object) -> Iterator[ExecServerClient]:
    assert options.keys() <= MEMBERS
    chosen = ExecServerClientConnectOptions(**options)  # type: ignore[arg-type]
    with ExecServerClient.connect(server.url, chosen) as client:
        yield client


def test_a_session_is_found_by_its_name_with_all_that_happened(server: ServerProcess) -> None:
    with connected(server, session_name="job", keep_ms=60_000) as first:
        assert first.kept is not None
        assert first.kept.keep_ms == 60_000
        first.start(["sh", "-c", "echo done; exit 3"], process_id="p", process_name="build").wait(20)
        first.detach()
    with connected(server, resume_session_name="job") as again:
        (entry,) = again.session_processes()
        assert (entry.process_name, entry.session_name, entry.exit_code) == ("build", "job", 3)
        events = list(again.attach_process("p"))
        assert [event.data for event in events if isinstance(event, Output)] == [b"done\n"]
        assert again.session_keep(0).keep_ms == 0
        assert [one.name for one in again.session_list()] == ["job"]


def test_another_client_follows_takes_over_and_leaves(server: ServerProcess) -> None:
    with connected(server, session_name="shell") as owner, connected(server) as other:
        process = owner.start(["cat"], pipe_stdin=True, process_id="p")
        process.write(b"one\n")
        watched = other.watch_process(owner.session_id, "p")
        assert not watched.writer
        first = watched.next_event(20)
        assert isinstance(first, Output)
        assert first.data == b"one\n"
        with pytest.raises(InvalidRequestError, match="take it first"):
            watched.write(b"no")
        watched.take()
        watched.write(b"two\n")
        with pytest.raises(InvalidRequestError, match="take it first"):
            process.write(b"no")
        assert not process.writer
        second = process.next_event(20), process.next_event(20)
        assert isinstance(second[1], Output)
        assert second[1].data == b"two\n"
        watched.close_stdin()
        rest = list(watched)
        assert [type(event) for event in rest[-2:]] == [Exited, Closed]
        assert process.wait(20) == 0


def test_a_client_that_leaves_does_not_end_what_it_watches(server: ServerProcess) -> None:
    with connected(server, session_name="long") as owner:
        process = owner.start(["cat"], pipe_stdin=True, process_id="p")
        with connected(server) as other:
            watched = other.watch_process(owner.session_id, "p")
            watched.unwatch()
            with pytest.raises(InvalidRequestError, match="unknown process id"):
                watched.read()
            other.watch_process(owner.session_id, "p")
        process.write(b"still\n")
        event = process.next_event(20)
        assert isinstance(event, Output)
        process.close_stdin()
        assert process.wait(20) == 0
        with pytest.raises(StdinUnavailable):
            process.write(b"x")


def test_a_session_is_ended_by_another_client(server: ServerProcess) -> None:
    with connected(server, session_name="left", keep_ms=60_000) as first:
        first.start(["sleep", "1000"], process_id="p")
        first.detach()
    with connected(server, resume_window=5.0) as other:
        (left,) = [one for one in other.session_list() if one.name == "left"]
        assert (left.processes, left.keep_ms) == (1, 60_000)
        assert other.session_end(left.session_id)
        assert not other.session_end(left.session_id)


def test_a_server_without_kept_sessions_is_told_from_the_client(
    server: ServerProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    with connected(server) as client:
        info = client.server_info
        assert info is not None
        assert info.execserver is not None
        monkeypatch.setattr(type(client._session), "extensions", Extensions())
        with pytest.raises(UnsupportedByServer):
            client.session_list()


def test_the_log_has_what_memory_has_dropped(server: ServerProcess) -> None:
    script = "for n in 1 2 3 4; do head -c 1000000 /dev/zero | tr '\\0' $n; done"
    with connected(server, keep_ms=60_000) as client:
        process = client.start(["sh", "-c", script], collect_output=False)
        process.wait(20)
        found, after = b"", 0
        while chunks := (page := process.log(after)).chunks:
            found += b"".join(chunk.chunk for chunk in chunks)
            after = page.next_seq - 1
            assert all(chunk.at_ms > 10**12 for chunk in chunks)
        assert found == b"".join(digit * 1_000_000 for digit in (b"1", b"2", b"3", b"4"))
        assert (page.lost_bytes, page.spool_error, page.exit_code) == (0, None, 0)
        assert process.read(0).lost_bytes  # in memory, as ever
        client.session_keep(0)


def test_the_log_of_a_session_that_is_not_kept_is_what_memory_has(server: ServerProcess) -> None:
    with connected(server) as client:
        process = client.start(["sh", "-c", "head -c 3000000 /dev/zero"], collect_output=False)
        process.wait(20)
        page = process.log(tail_bytes=1)
        assert page.lost_bytes > 1_000_000
        assert sum(len(chunk.chunk) for chunk in page.chunks) <= 65536


def answered_late(proxy: CuttingProxy, ask: Callable[[], T]) -> T:
    """Call with the first answer lost together with the connection."""
    proxy.swallow = True
    before = proxy.forwarded
    call = gevent.spawn(ask)
    wait_until(lambda: proxy.forwarded > before, pause=gevent.sleep)
    proxy.cut()
    return call.get(timeout=20)


def test_calls_whose_answers_are_lost_are_made_again(server: ServerProcess) -> None:
    """`execserver wait` ended with 255 when the connection went while it began to watch."""
    with connected(server, session_name="cut") as owner:
        owner.start(["sleep", "60"], process_id="p")
        with CuttingProxy(server.url) as proxy, ExecServerClient.connect(proxy.url, QUICK) as other:

            def watchers() -> list[int]:
                return [one.watchers for one in other.session_processes() if one.session_name == "cut"]

            assert "cut" in [one.name for one in answered_late(proxy, other.session_list)]
            assert "p" in [one.process_id for one in answered_late(proxy, other.session_processes)]
            assert answered_late(proxy, lambda: other.session_keep(1000, "mine")).name == "mine"
            watched = answered_late(proxy, lambda: other.watch_process(owner.session_id, "p"))
            # The watch whose answer was lost ends.
            wait_until(lambda: watchers() == [1], pause=gevent.sleep)
            owner.attach_process("p").terminate()
            assert watched.wait(20) == 137
            other.session_keep(0)

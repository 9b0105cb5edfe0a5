from __future__ import annotations

import os
import random
from base64 import b64decode

import pytest

from execserver.services.launch.spawner import Spawner
from tests.services.fakes import FakeSpawner
from tests.services.played import Play, Played
from tests.services.spawning import spawner, spec

pytestmark = pytest.mark.usefixtures("loop_failures")


def test_the_events_of_a_process_in_their_order(play: Play) -> None:
    one = play()
    one.far.write("stdout", b"out")
    one.far.write("stderr", b"err")
    one.far.close()
    one.far.exit(3 << 8)
    assert one.events() == [
        (1, "stdout", "b3V0"),
        (2, "stderr", "ZXJy"),
        (3, "exited", 3),
        (4, "closed"),
    ]
    assert (one.process.state.exit_code, one.process.state.closed, one.closed) == (3, True, 1)


def test_output_is_told_and_retained_alike_whether_or_not_it_goes_at_once(play: Play) -> None:
    rng = random.Random(5)
    quick, usual = play(), play()
    usual.sink.takes_at_once = False
    for _ in range(300):
        data = rng.randbytes(rng.choice((1, 16, 255, 257, 4095)))
        for one in (quick, usual):
            one.far.write("stdout", data)
    for one in (quick, usual):
        one.far.end()
        one.wait_until_closed()
    assert quick.events() == usual.events()
    told = [(seq, b64decode(text)) for seq, of, text in quick.events()[:-2] if of == "stdout"]
    for one in (quick, usual):
        assert [(chunk.seq, chunk.data) for chunk in one.process.page(0, None).chunks] == told
    assert len(told) >= 300


def test_what_was_written_before_the_exit_comes_before_it(play: Play) -> None:
    """Also when the record of the exit is read first."""
    one = play(begin=False)
    one.far.write("stderr", b"err")
    one.far.write("stdout", b"out")
    one.far.close()
    one.far.exit()
    one.process.begin()
    assert [event[1] for event in one.events()] == ["stdout", "stderr", "exited", "closed"]


def test_an_exit_before_the_begin_is_not_lost(play: Play) -> None:
    one = play(begin=False)
    one.far.exit(1 << 8)
    assert one.events() == []
    one.process.begin()
    assert one.events() == [(1, "exited", 1)]


def test_late_output_comes_behind_the_exit(play: Play) -> None:
    one = play()
    one.far.close("stderr")
    one.far.exit()
    one.far.write("stdout", b"grandchild")
    assert [event[1] for event in one.events()] == ["exited", "stdout"]
    one.far.close()
    assert one.events()[-1] == (3, "closed")


def test_closed_needs_the_exit_and_the_end_of_every_output(play: Play) -> None:
    one = play()
    one.far.close("stdout")
    one.far.close("stderr")
    assert (one.process.state.closed, one.events()) == (False, [])
    one.far.exit()
    assert [event[1] for event in one.events()] == ["exited", "closed"]


def test_beginning_twice_is_beginning_once(play: Play) -> None:
    one = play()
    one.process.begin()
    one.far.write("stdout", b"out")
    one.far.end()
    one.process.begin()
    assert [event[1] for event in one.events()] == ["stdout", "exited", "closed"]


@pytest.mark.parametrize(
    ("tty", "status", "code"), [(False, 15, 143), (False, 9, 137), (True, 15, 1), (True, 7 << 8, 7)]
)
def test_exit_codes(play: Play, tty: bool, status: int, code: int) -> None:
    one = play(tty=tty)
    one.far.end(status)
    one.wait_until_closed()
    assert one.process.state.exit_code == code


def test_a_client_that_does_not_read_holds_back_the_output_but_not_the_exit(play: Play) -> None:
    one = play()
    one.sink.fill()
    one.far.write("stdout", b"held back")
    one.far.close()
    one.far.exit()
    assert [event[1] for event in one.events()] == ["exited"]
    one.sink.read()
    assert [event[1] for event in one.events()] == ["exited", "stdout", "closed"]


def test_while_detached_output_is_only_retained(play: Play) -> None:
    one = play()
    one.sink.fill()
    one.attachment.sink = None
    one.far.write("stdout", b"missed")
    one.far.end()
    assert one.events() == []
    page = one.process.page(0, None)
    assert [chunk.data for chunk in page.chunks] == [b"missed"]
    assert (page.next_seq, one.process.state.closed) == (4, True)


def test_a_client_that_goes_while_it_is_told_something_changes_nothing_else(play: Play) -> None:
    """The write to it fails inside of an event, and detaches the session there."""
    one = play(begin=False)

    def leave() -> None:
        one.sink.close()
        one.attachment.sink = None

    one.sink.on_send = leave
    one.far.write("stdout", b"out")
    one.far.write("stderr", b"err")
    one.far.end()
    one.process.begin()  # the exit is known: what was written before is read with it
    assert len(one.sink.messages) == 1
    assert [chunk.data for chunk in one.process.page(0, None).chunks] == [b"out", b"err"]
    assert (one.process.state.closed, one.closed) == (True, 1)


def test_terminating_kills_the_group(play: Play) -> None:
    one = play(pipe_stdin=True)
    assert one.process.terminate() is True
    assert one.far.signals == [9]
    assert one.far.read() == b""  # its input has ended
    one.far.exit(9)
    assert one.events() == [(1, "exited", 137), (2, "closed")]
    assert one.process.terminate() is False
    assert one.far.signals == [9]


def test_after_a_terminate_nobody_waits_for_the_end_of_the_output(play: Play) -> None:
    one = play()
    one.far.write("stdout", b"before")
    one.process.terminate()
    os.write(one.far._ends["stdout"], b"last")
    one.far.exit(9)  # a grandchild still holds the output
    assert [event[1] for event in one.events()] == ["stdout", "stdout", "exited", "closed"]


def test_terminating_a_terminal_ends_it(play: Play) -> None:
    one = play(tty=True)
    assert one.process.terminate() is True
    one.far.exit(9)
    assert one.events() == [(1, "exited", 1), (2, "closed")]
    assert not one.process.resize(1, 1)


def test_a_process_that_cannot_be_killed_is_still_told_as_running(
    play: Play, fake_spawner: FakeSpawner, caplog: pytest.LogCaptureFixture
) -> None:
    one = play()
    fake_spawner.signal_failure = PermissionError(1, "Operation not permitted")
    assert one.process.terminate() is True
    assert len(caplog.messages) == 1
    assert "cannot be killed: [Errno 1] Operation not permitted" in caplog.messages[0]


def test_signals_go_to_a_process_that_runs(play: Play, fake_spawner: FakeSpawner) -> None:
    one = play()
    one.process.signal(2)
    assert one.far.signals == [2]
    fake_spawner.signal_failure = PermissionError(1, "x")
    with pytest.raises(PermissionError):
        one.process.signal(15)
    one.far.exit()
    one.process.signal(2)
    assert one.far.signals == [2, 15]


def test_ending_kills_what_runs_and_stops_listening_at_its_exit(play: Play) -> None:
    one = play()
    one.process.end()
    assert one.far.signals == [9]
    assert not one.process.state.closed
    one.far.exit(9)
    assert [event[1] for event in one.events()] == ["exited", "closed"]
    one.process.end()
    assert one.far.signals == [9]


def test_ending_kills_what_an_exited_process_left(play: Play) -> None:
    one = play()
    one.far.exit()
    assert not one.process.state.closed
    one.process.end()
    assert one.far.signals == [9]
    assert (one.process.state.closed, one.closed) == (True, 1)


def test_input_reaches_the_process(play: Play) -> None:
    one = play(pipe_stdin=True)
    assert one.process.stdin is not None
    one.process.stdin.put(b"line")
    assert one.far.read() == b"line"
    closed = [one.process.stdin_closed]
    one.process.close_stdin()
    closed.append(one.process.stdin_closed)
    assert one.far.read() == b""
    assert closed == [False, True]


def test_without_a_pipe_there_is_no_input(play: Play) -> None:
    one = play()
    assert one.process.stdin is None
    one.process.close_stdin()
    assert not one.process.stdin_closed


def test_the_input_is_closed_with_the_process(play: Play) -> None:
    one = play(pipe_stdin=True)
    one.far.close("stdout", "stderr")
    one.far.exit()
    assert one.process.stdin is not None
    assert one.process.stdin.gone


def real(by: Spawner, *argv: bytes, tty: bool = False, pipe_stdin: bool = False) -> Played:
    """Start a real process."""
    made = Played(by, spec(*argv, tty=tty, pipe_stdin=pipe_stdin))
    made.process.begin()
    return made


def test_real_processes() -> None:
    with spawner() as starter:
        echo = real(starter, b"sh", b"-c", b"printf out; printf err >&2; exit 4")
        cat = real(starter, b"cat", pipe_stdin=True)
        shell = real(starter, b"sh", b"-c", b"read line; echo $line", tty=True)
        endless = real(starter, b"sh", b"-c", b"sleep 100 & sleep 100")
        assert cat.process.stdin is not None
        cat.process.stdin.put(b"in")
        cat.process.close_stdin()
        assert shell.process.stdin is not None
        shell.process.stdin.put(b"typed\n")
        assert endless.process.terminate()
        for each in (echo, cat, shell, endless):
            each.wait_until_closed()
        assert sorted(event[1:] for event in echo.events()[:2]) == [("stderr", "ZXJy"), ("stdout", "b3V0")]
        assert echo.events()[2:] == [(3, "exited", 4), (4, "closed")]
        assert cat.events() == [(1, "stdout", "aW4="), (2, "exited", 0), (3, "closed")]
        assert shell.process.state.log.text_of("pty") == b"typed\r\ntyped\r\n"
        assert endless.events() == [(1, "exited", 137), (2, "closed")]

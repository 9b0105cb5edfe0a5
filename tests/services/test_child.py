from __future__ import annotations

import fcntl
import os
import signal
import struct
import termios
import tty

import pytest

from execserver.services.launch.child import Child, Streams, exit_code


class Recorder:
    """Stands for the zygote: remembers what was to be signalled."""

    pid = 4242

    def __init__(self) -> None:
        self.signals: list[tuple[int, int]] = []

    def signal_child(self, child: Child, signum: int) -> bool:
        self.signals.append((child.child_id, signum))
        return True


def child(tty: bool = False) -> Child:
    streams = Streams()
    streams.outputs = [("pty", 99)] if tty else [("stdout", 98), ("stderr", 99)]
    streams.stdin_fd = 99 if tty else None
    return Child(7, tty, streams, Recorder())


@pytest.mark.parametrize(
    ("status", "code"), [(0, 0), (255 << 8, 255), (3 << 8, 3), (9, 137), (signal.SIGSEGV | 0x80, 139)]
)
def test_the_exit_code_of_a_wait_status(status: int, code: int) -> None:
    assert exit_code(status) == code


def test_the_callback_is_called_once_with_the_code() -> None:
    codes: list[int] = []
    one = child()
    one.on_exit(codes.append)
    assert (one.exited, one.exit_code, one.killed_by) == (False, None, 0)
    one.set_exited(15, survivors=True)
    assert codes == [143]
    assert (one.exited, one.exit_code, one.killed_by, one.survivors) == (True, 143, 15, True)


def test_a_callback_set_after_the_exit_is_called_at_once() -> None:
    codes: list[int] = []
    one = child()
    one.set_exited(2 << 8, survivors=False)
    one.on_exit(codes.append)
    assert codes == [2]


def test_signals_go_to_the_zygote() -> None:
    recorder = Recorder()
    one = Child(7, False, Streams(), recorder)
    assert one.signal(2)
    assert one.kill_group()
    assert recorder.signals == [(7, 2), (7, 9)]


def test_a_terminals_descriptor_is_input_and_output() -> None:
    assert (child(tty=True).master_fd, child(tty=True).stdin_fd) == (99, 99)
    assert child().master_fd is None


@pytest.mark.parametrize("pipe_stdin", [False, True])
def test_pipes_are_made_and_closed(pipe_stdin: bool) -> None:
    streams = Streams.pipes(pipe_stdin)
    assert [name for name, _ in streams.outputs] == ["stdout", "stderr"]
    assert len(streams.child_ends) == 2 + pipe_stdin
    assert all(os.get_blocking(end) for end in streams.child_ends)
    streams.close_child_ends()
    assert streams.child_ends == []
    streams.close()
    assert (streams.outputs, streams.stdin_fd) == ([], None)


def test_a_failure_half_way_leaves_nothing_open(monkeypatch: pytest.MonkeyPatch) -> None:
    made = [os.pipe2(os.O_CLOEXEC), os.pipe2(os.O_CLOEXEC)]

    def pipe2(flags: int) -> tuple[int, int]:
        if not made:
            raise OSError(24, "full")
        return made.pop()

    monkeypatch.setattr(os, "pipe2", pipe2)
    with pytest.raises(OSError, match="full"):
        Streams.pipes(pipe_stdin=True)


def test_a_terminal_has_its_size_and_is_ready_to_be_opened() -> None:
    streams = Streams.terminal((24, 80))
    names = [name for name, _ in streams.outputs]
    slave = os.open(streams.slave, os.O_RDWR | os.O_NOCTTY | os.O_CLOEXEC)
    try:
        assert names == ["pty"]
        assert struct.unpack("4H", fcntl.ioctl(slave, termios.TIOCGWINSZ, bytes(8))) == (24, 80, 0, 0)
        assert termios.tcgetattr(slave)[tty.LFLAG] & termios.ECHO
    finally:
        os.close(slave)
    streams.close()

from __future__ import annotations

import fcntl
import os
import struct
import termios
import tty

import pytest

from tests.services.played import Play

pytestmark = pytest.mark.usefixtures("loop_failures")


def test_the_end_of_a_terminals_input_is_typed(play: Play) -> None:
    one = play(tty=True)
    slave = one.far._ends["pty"]
    one.process.close_stdin()
    assert os.read(slave, 100) == b""  # what a reader gets for the end-of-file character
    assert not one.process.stdin_closed
    modes = termios.tcgetattr(slave)
    modes[6][termios.VEOF] = b"\x19"
    modes[tty.LFLAG] &= ~(termios.ICANON | termios.ECHO)
    termios.tcsetattr(slave, termios.TCSANOW, modes)
    one.process.close_stdin()
    assert os.read(slave, 100) == b"\x19"


def test_a_terminal_is_resized_until_it_ends(play: Play) -> None:
    one = play(tty=True)
    assert one.process.resize(50, 132)
    size = struct.unpack("4H", fcntl.ioctl(one.far._ends["pty"], termios.TIOCGWINSZ, bytes(8)))
    assert size == (50, 132, 0, 0)
    one.far.end()
    one.wait_until_closed()
    assert not one.process.resize(24, 80)
    one.process.close_stdin()


def test_pipes_have_no_size(play: Play) -> None:
    assert not play().process.resize(24, 80)


def test_a_terminals_output(play: Play) -> None:
    one = play(tty=True)
    one.far.write("pty", b"shown")
    one.far.end()
    one.wait_until_closed()
    assert one.events() == [(1, "pty", "c2hvd24="), (2, "exited", 0), (3, "closed")]

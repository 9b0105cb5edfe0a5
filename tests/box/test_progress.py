"""The line that says how far a copy is."""

from __future__ import annotations

import signal

from execserver.box.transfer import progress
from tests.box.boxes import Person
from tests.box.lying_trees import TOP, box, entry, page, said

SIZE = 3 * 2**20


def test_progress_for_people() -> None:
    assert progress.line(512, 0, 1.0) == "512 B  512 B/s"
    assert progress.line(2**20, 2**22, 2.0) == "1.0 MiB  512.0 KiB/s  25 %  0:06 left"
    assert progress.line(0, 2**22, 2.0) == "0 B  0 B/s"


def test_a_copy_that_has_stalled_says_since_when() -> None:
    assert progress.line(2**20, 2**22, 64.0, 61.9) == "1.0 MiB  16.0 KiB/s  25 %  stalled for 1:01"
    assert progress.line(2**20, 0, 64.0, 5.0) == "1.0 MiB  16.0 KiB/s  stalled for 0:05"
    assert progress.line(0, 2**22, 6.0, 6.0) == "0 B  0 B/s  0 %  stalled for 0:06"
    assert progress.line(2**20, 2**22, 2.0, 4.9) == "1.0 MiB  512.0 KiB/s  25 %  0:06 left"


def test_a_box_that_sends_nothing_is_shown_as_stalled_and_left_at_once(person: Person) -> None:
    answers = {"fs_list": said(page(TOP, entry(b"f", size=SIZE))), "fs_readBlock": lambda asked: None}
    with (
        box(**answers) as liar,
        person.at_terminal("cp", ":d", "back", EXECSERVER_BOX=liar.url) as screen,
    ):
        screen.wait_for(b"  stalled for 0:0")
        screen.type(b"\3")
        assert screen.ended() == 128 + signal.SIGINT

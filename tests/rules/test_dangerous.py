"""Which commands are asked about although no rule names them."""

from __future__ import annotations

import shlex

import pytest

from execserver.rules.dangerous import SCRIPT_CHARACTERS, might_be_dangerous
from tests.rules.commands import ASKED, ASKED_HERE_ONLY, NOT_ASKED

KNOWN_BY_PATH = {"rm": False, "bash": True, "git": True, "sudo": False}


@pytest.mark.parametrize("command", [*ASKED, *ASKED_HERE_ONLY])
def test_it_is_asked_about(command: str) -> None:
    assert might_be_dangerous(shlex.split(command))


@pytest.mark.parametrize("command", NOT_ASKED)
def test_it_is_not_asked_about(command: str) -> None:
    assert not might_be_dangerous(shlex.split(command))


@pytest.mark.parametrize(("program", "asked"), list(KNOWN_BY_PATH.items()))
def test_a_path_hides_what_is_known_by_its_whole_word(program: str, asked: bool) -> None:
    arguments = {
        "rm": ["-f"],
        "bash": ["-c", "rm -f x"],
        "git": ["reset"],
        "sudo": ["rm", "-f"],
    }
    assert might_be_dangerous([program, *arguments[program]])
    assert might_be_dangerous([f"/usr/bin/{program}", *arguments[program]]) is asked


def test_no_words_are_no_danger() -> None:
    assert not might_be_dangerous([])
    assert not might_be_dangerous(["sudo"])
    assert not might_be_dangerous(["git"])


def test_a_script_longer_than_any_argument_is_not_looked_at() -> None:
    script = "rm -f x;" + " " * SCRIPT_CHARACTERS
    assert not might_be_dangerous(["bash", "-c", script])
    assert might_be_dangerous(["bash", "-c", script[:SCRIPT_CHARACTERS]])

"""A box whose server is another one, with the contract's methods and nothing else."""

from __future__ import annotations

import pytest

from tests.box.boxes import Person
from tests.box.liar import SESSION, Asked, Liar, visit


def introduce(asked: Asked) -> None:
    """Answer `initialize` as a server of the first contract does."""
    asked.result({"sessionId": SESSION})


def end_at_once(asked: Asked) -> None:
    """Start a command that has ended already."""
    asked.result({"processId": asked.params["processId"]})
    asked.output(1, b"done\n")
    asked.end(2)


def go_on(asked: Asked) -> None:
    """Start a command that goes on."""
    asked.result({"processId": asked.params["processId"]})


def test_a_folder_below_a_home_that_nobody_knows_is_not_guessed(person: Person) -> None:
    with Liar(initialize=introduce, process_start=end_at_once) as liar:
        status, _, err = visit(person, "run", liar.url, "--cwd", "work", "--", "x")
        assert (status, liar.asked) == (255, ["initialize", "initialized"])
        assert "does not say where its home is\n  What to do: name the folder by its full path\n" in err
        for folder in (("--cwd", "/work"), ("--cwd", "~"), ()):
            assert visit(person, "run", liar.url, *folder, "--", "x")[:2] == (0, "done\n")


@pytest.mark.parametrize("source", ["file", "-"])
def test_no_file_is_sent_whose_end_cannot_be_told(person: Person, source: str) -> None:
    (person.home / "file").touch()
    with Liar(initialize=introduce, process_start=go_on) as liar:
        status, _, err = visit(person, "cp", "--box", liar.url, source, ":/there")
        assert (status, "process/start" in liar.asked) == (255, False)
    assert "cannot be told where a file ends\n  What to do: let execserver listen there\n" in err


def test_a_command_that_reads_nothing_is_not_troubled_with_the_end_of_its_input(person: Person) -> None:
    with Liar(initialize=introduce, process_start=end_at_once) as liar:
        assert visit(person, "run", liar.url, "--", "x") == (0, "done\n", "")


@pytest.mark.long
def test_a_command_that_may_wait_for_the_end_of_its_input_is_told_about(person: Person) -> None:
    with Liar(initialize=introduce, process_start=go_on) as liar:
        run = person.start("run", liar.url, "--", "x")
        assert run.stdin is not None
        assert run.stderr is not None
        run.stdin.close()
        assert b"cannot be told of the end of the input; ^C ends the command\n" in run.stderr.readline()
        run.kill()
        run.wait()
        run.stderr.close()
        assert run.stdout is not None
        run.stdout.close()

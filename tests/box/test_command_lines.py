"""What a person types out of habit, and what only looks like a word."""

from __future__ import annotations

import os
import socket

import pytest

from execserver.arguments import Program, read_table
from execserver.leaving import Leave
from tests.box.boxes import Person
from tests.support.server_process import ServerProcess

NOT_TEXT = os.fsdecode(b"n\xff")


@pytest.mark.parametrize(
    "words",
    [
        ("run", "{url}", "--", "touch", NOT_TEXT),
        ("run", "{url}", "--name", "n", "--", "touch", NOT_TEXT),
        ("run", "{url}", "-e", f"A={NOT_TEXT}", "--", "true"),
        ("run", "-d", "{url}", "--", NOT_TEXT),
        ("find", "--box", "{url}", ":.", NOT_TEXT),
        ("grep", "--box", "{url}", NOT_TEXT, ":."),
        ("cp", "--box", "{url}", f":{NOT_TEXT}", "-"),
    ],
)
def test_words_that_are_no_text_are_told(
    person: Person, server: ServerProcess, words: tuple[str, ...]
) -> None:
    done = person.run(*(word.format(url=server.url) for word in words))
    assert (done.returncode, done.stdout) == (2, b"")
    assert done.stderr.endswith(b"n\\xff' is no UTF-8, and only paths may be that\n")


def test_a_path_may_be_no_utf8(person: Person, server: ServerProcess) -> None:
    (person.home / NOT_TEXT).write_text("content")
    source = f":{person.home}/{NOT_TEXT}"
    assert person.run("cp", "--box", server.url, source, "copy").returncode == 0
    assert (person.home / "copy").read_text() == "content"


@pytest.mark.parametrize(
    "words", [("cp", "a", "ws://127.0.0.1:1:/a"), ("sync", "ssh:me@there:a", "a"), ("find", "ssh:there:a")]
)
def test_a_url_before_a_path_is_told_with_the_way_to_write_it(person: Person, words: tuple[str, ...]) -> None:
    done = person.run(*words)
    assert (done.returncode, done.stdout) == (255, b"")
    assert b"there is no box '" in done.stderr
    assert b"before a path as --box URL :PATH" in done.stderr


TABLE = read_table(
    """
  -i, --ignore              .
  -n, --number              .
  -s, --signal <SIGNAL>     .
  -h, --help                .
"""
)


def parsed(*words: str) -> list[str]:
    return Program("x", TABLE, lambda: "help", usage="").parse([*words]).words


def test_short_options_may_be_written_as_one() -> None:
    assert parsed("-in") == ["--ignore", "--number"]
    assert parsed("-ins", "KILL") == parsed("-insKILL") == ["--ignore", "--number", "--signal=KILL"]
    for words, text in (
        ("-ix", "unexpected argument '-x' found"),
        ("-nn", "'--number' cannot be used multiple times"),
        ("-i=x", "unexpected argument '-=' found"),
    ):
        with pytest.raises(Leave, match=text) as left:
            parsed(words)
        assert left.value.status == 2
    with pytest.raises(Leave) as helped:
        parsed("-ihx")
    assert (helped.value.status, helped.value.stdout) == (0, "help")


def test_a_signal_has_a_number_too(person: Person, server: ServerProcess) -> None:
    started = person.run("run", "-d", server.url, "--name", "numbered", "--", "sleep", "60")
    assert started.returncode == 0
    assert person.run("kill", server.url, "numbered", "-s", "65").returncode == 2
    assert person.run("kill", server.url, "numbered", "-s", "9").returncode == 0
    assert person.run("wait", server.url, "numbered").returncode == 137


def test_who_forgets_the_box_is_told_how_to_name_one(person: Person) -> None:
    done = person.run("logs", "job")
    assert done.returncode == 255
    assert b"What to do: name a box before everything else, or in EXECSERVER_BOX; or let" in done.stderr


def test_a_command_that_cannot_be_run_is_told_with_a_path(person: Person, server: ServerProcess) -> None:
    done = person.run("run", server.url, "--cwd", "/usr", "--", "/no/such")
    assert done.stderr.startswith(b"Error: cannot run /no/such in /usr of ws://")


def test_a_port_of_the_box_that_is_taken_is_told_as_one_here(person: Person, server: ServerProcess) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = person.run("forward", server.url, "-R", f"{port}:localhost:1")
    assert done.returncode == 1
    told = f"cannot listen on 127.0.0.1:{port}: Address in use (os error 98)\n"
    assert done.stderr.decode().endswith(f"{told}  What to do: choose another port\n")
    done = person.run("forward", server.url, "-R", "0.0.0.0:0:localhost:1")
    assert done.returncode == 255
    assert b"this server forwards to loopback addresses only (--allow-forward loopback)" in done.stderr

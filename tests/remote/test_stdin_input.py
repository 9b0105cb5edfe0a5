"""Stdin as the source of a credential: waiting for it, replacing it, and what its end means."""

from __future__ import annotations

import os
from collections.abc import Iterator

import gevent
import pytest

from execserver.remote import stdin_input
from execserver.remote.auth.stdin_credentials import ExecutorCredential, RegistrationBearer
from execserver.remote.errors import SignInError
from execserver.remote.stdin_input import CredentialInput
from tests.support.waiting import wait_until

FRAME = b'{"version":1,"environment_id":"e","token":"%s","expires_at":20}\n'


class Pipe:
    """A pipe, and how often the program was asked to leave."""

    def __init__(self) -> None:
        self.reading, self.writing = os.pipe()
        self.left = 0
        self.input: CredentialInput | None = None

    def leave(self) -> None:
        self.left += 1

    def executor(self) -> CredentialInput:
        credential = ExecutorCredential("e", lambda: 0.0, lambda secret: None)
        self.input = CredentialInput(self.reading, credential, self.leave)
        return self.input

    def bearer(self, *, ends: bool = False) -> CredentialInput:
        self.input = CredentialInput(self.reading, RegistrationBearer(), self.leave, ends_with_stdin=ends)
        return self.input

    def write(self, data: bytes) -> None:
        os.write(self.writing, data)

    def end(self) -> None:
        os.close(self.writing)
        self.writing = -1

    def close(self) -> None:
        if self.input is not None:
            self.input.close()
        os.close(self.reading)
        if self.writing >= 0:
            os.close(self.writing)


@pytest.fixture
def pipe() -> Iterator[Pipe]:
    made = Pipe()
    yield made
    made.close()


def test_a_later_frame_takes_the_place_of_the_one_before(pipe: Pipe) -> None:
    given = pipe.executor()
    pipe.write(FRAME % b"t1")
    auth = given.wait()
    assert auth.headers() == [("authorization", "Bearer t1")]
    pipe.write(FRAME % b"t2")
    wait_until(lambda: auth.headers() == [("authorization", "Bearer t2")], 10, pause=gevent.sleep)
    pipe.end()
    wait_until(lambda: pipe.left == 1, 10, pause=gevent.sleep)
    assert given.failure is None


def test_a_wrong_frame_ends_the_program_with_its_text(pipe: Pipe) -> None:
    given = pipe.executor()
    pipe.write(FRAME % b"t1")
    given.wait()
    pipe.write(b"junk\n")
    wait_until(lambda: pipe.left == 1, 10, pause=gevent.sleep)
    assert given.failure is not None
    assert given.failure.text == "invalid exec-server executor credential frame"


def test_an_end_that_comes_with_the_first_frame_is_an_error(pipe: Pipe) -> None:
    given = pipe.executor()
    pipe.write(FRAME % b"t1")
    pipe.end()
    with pytest.raises(SignInError, match="exec-server executor credential pipe closed"):
        given.wait()


def test_the_first_frame_is_not_waited_for_longer(pipe: Pipe, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stdin_input, "FIRST_FRAME_S", 0.01)
    with pytest.raises(SignInError, match="timed out waiting for the initial"):
        pipe.executor().wait()


def test_the_end_behind_a_bearer_is_ignored_unless_it_counts(pipe: Pipe) -> None:
    given = pipe.bearer()
    pipe.write(b"tok\nmore")
    pipe.end()
    assert given.wait().headers() == [("authorization", "Bearer tok")]
    assert pipe.left == 0


def test_the_end_behind_a_bearer_is_one_where_it_counts(pipe: Pipe) -> None:
    given = pipe.bearer(ends=True)
    pipe.write(b"tok\n")
    given.wait()
    pipe.end()
    wait_until(lambda: pipe.left == 1, 10, pause=gevent.sleep)


def test_nothing_else_waits_while_a_credential_is_waited_for(pipe: Pipe) -> None:
    given = pipe.bearer()
    waiting = gevent.spawn(given.wait)
    for _ in range(10):
        gevent.sleep(0)
    assert not waiting.ready()
    pipe.write(b"tok\n")
    assert waiting.get(timeout=20).headers() == [("authorization", "Bearer tok")]

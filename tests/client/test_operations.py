"""Operations, and how they are carried out: answers go in, errors are thrown in, the result comes out."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import gevent
import pytest

from execserver.client.errors import InvalidPath, NotFoundError, TransportClosed
from execserver.client.operations import content, files
from execserver.client.operations.call import Call, Operation, ask, drive
from execserver.protocol.files import (
    FsCloseParams,
    FsCloseResponse,
    FsGetMetadataResponse,
    FsOpenResponse,
    FsReadBlockParams,
    FsReadBlockResponse,
    FsRemoveParams,
    FsRemoveResponse,
)
from execserver.protocol.methods import FS_CLOSE, FS_READ_BLOCK, FS_WRITE_BLOCK


class Caller:
    """Answers the calls in turn; an exception among the answers is raised."""

    def __init__(self, *answers: object) -> None:
        self.made: list[tuple[str, object, bool, float | None]] = []
        self._answers: list[Any] = list(answers)

    def call(self, method: Any, params: Any, *, resend: bool = False, timeout: float | None = None) -> Any:
        self.made.append((method.name, params, resend, timeout))
        if isinstance(self._answers[0], BaseException):
            raise self._answers.pop(0)  # not by a name, which its traceback would hold
        return self._answers.pop(0)


BLOCK = FsReadBlockParams(handle_id="h", offset=0, len=3)
CLOSE = FsCloseParams(handle_id="h")


def read_and_close() -> Operation[bytes]:
    try:
        return (yield from ask(FS_READ_BLOCK, BLOCK, resend=True, timeout=2.5)).chunk
    finally:
        yield Call(FS_CLOSE, CLOSE)


def refused() -> NotFoundError:
    return NotFoundError(-32004, "no such handle")


def test_the_result_is_made_of_the_answers() -> None:
    caller = Caller(FsReadBlockResponse(chunk=b"abc", eof=False), FsCloseResponse())
    assert drive(caller, read_and_close()) == b"abc"
    assert caller.made == [("fs/readBlock", BLOCK, True, 2.5), ("fs/close", CLOSE, False, None)]


def test_an_operation_without_calls_has_a_result_too() -> None:
    def nothing() -> Operation[int]:
        yield from ()
        return 7

    assert drive(Caller(), nothing()) == 7


def test_an_operation_cleans_up_behind_a_refused_call() -> None:
    caller = Caller(refused(), FsCloseResponse())
    with pytest.raises(NotFoundError, match="no such handle"):
        drive(caller, read_and_close())
    assert [name for name, *_ in caller.made] == ["fs/readBlock", "fs/close"]


def test_an_operation_may_go_on_after_a_refused_call() -> None:
    def careful() -> Operation[str]:
        try:
            yield Call(FS_CLOSE, CLOSE)
        except NotFoundError:
            return "was closed"
        return "closed"

    assert drive(Caller(refused()), careful()) == "was closed"


def test_an_operation_cleans_up_when_its_greenlet_is_killed() -> None:
    caller = Caller(gevent.GreenletExit(), FsCloseResponse())
    with pytest.raises(gevent.GreenletExit):
        drive(caller, read_and_close())
    assert [name for name, *_ in caller.made] == ["fs/readBlock", "fs/close"]


def test_a_failed_operation_is_freed_without_the_collector() -> None:
    gc.collect()
    gc.disable()
    try:
        operation = read_and_close()
        life = weakref.ref(operation)
        with pytest.raises(NotFoundError):
            drive(Caller(refused(), FsCloseResponse()), operation)
        del operation
        assert life() is None
    finally:
        gc.enable()


def test_a_large_file_is_closed_when_its_reading_ends_early() -> None:
    """Also by what is no error; the file that fails to close changes nothing about why."""
    size = content.WHOLE_READ_BYTES + 1
    found = FsGetMetadataResponse(
        is_directory=False, is_file=True, is_symlink=False, size=size, created_at_ms=0, modified_at_ms=0
    )
    caller = Caller(found, FsOpenResponse(handle_id="h"), gevent.GreenletExit(), refused())
    with pytest.raises(gevent.GreenletExit):
        drive(caller, content.read_file(content.Handles(), "/f"))
    assert [(name, timeout) for name, _, _, timeout in caller.made] == [
        ("fs/getMetadata", None),
        ("fs/open", None),
        ("fs/readBlock", None),
        ("fs/close", 5.0),
    ]


def test_a_dropped_operation_makes_no_more_calls() -> None:
    operation = content._write_blocks("h", b"abc")
    assert next(operation).method is FS_WRITE_BLOCK
    operation.close()


def test_a_handle_that_ended_with_its_connection_is_closed() -> None:
    drive(Caller(TransportClosed("gone")), content.close("h"))


def test_every_handle_has_an_id_of_its_own() -> None:
    one, other = content.Handles(), content.Handles()
    assert len({one.new(), one.new(), other.new(), other.new()}) == 4


def test_a_relative_path_is_refused_before_anything_is_asked() -> None:
    caller = Caller()
    for operation in (files.remove("a"), files.rename("/a", "b"), content.read_file(content.Handles(), "a")):
        with pytest.raises(InvalidPath):
            drive(caller, operation)
    assert caller.made == []


def test_a_path_need_not_be_utf8() -> None:
    caller = Caller(FsRemoveResponse())
    drive(caller, files.remove(b"/a/\xff"))
    (_, params, _, _) = caller.made[0]
    assert isinstance(params, FsRemoveParams)
    assert params.path.native() == b"/a/\xff"

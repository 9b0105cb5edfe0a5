from __future__ import annotations

import errno
import gc
import weakref
from collections.abc import Callable
from functools import partial

import pytest

from execserver.handlers.guard import attempted, guarded
from execserver.protocol.errors import InternalError, InvalidRequest, NotFound, RpcError


def fail(error: Exception) -> None:
    raise error


def test_what_an_act_returns_is_returned() -> None:
    assert guarded("x", lambda: 5) == 5


@pytest.mark.parametrize("error", [InvalidRequest("no"), NotFound("no"), InternalError("no")])
def test_an_error_of_the_contract_passes(error: RpcError) -> None:
    with pytest.raises(RpcError) as caught:
        guarded("x", lambda: fail(error))
    assert caught.value is error


@pytest.mark.parametrize(
    ("number", "code", "message"),
    [
        (errno.ENOENT, -32004, "No such file or directory (os error 2)"),
        (errno.EACCES, -32600, "Permission denied (os error 13)"),
        (errno.EPERM, -32600, "Operation not permitted (os error 1)"),
        (errno.EINVAL, -32600, "Invalid argument (os error 22)"),
        (errno.ENOTDIR, -32603, "Not a directory (os error 20)"),
        (errno.ENOTEMPTY, -32603, "Directory not empty (os error 39)"),
    ],
)
def test_an_error_of_the_system_is_told_in_the_contracts_words(number: int, code: int, message: str) -> None:
    with pytest.raises(RpcError) as caught:
        guarded("x", lambda: fail(OSError(number, "anything")))
    assert (caught.value.code, caught.value.message) == (code, message)


def test_a_fault_is_an_internal_error_and_logged(caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(InternalError, match="internal error: ZeroDivisionError"):
        guarded("process/start", lambda: 1 // 0)
    assert caplog.messages == ["process/start failed"]
    assert caplog.records[0].exc_info is not None


@pytest.mark.parametrize("end", [KeyboardInterrupt, SystemExit, GeneratorExit])
def test_what_ends_the_program_is_not_held_up(end: type[BaseException]) -> None:
    def act() -> None:
        raise end

    with pytest.raises(end):
        guarded("x", act)


def test_an_attempt_returns_what_a_guarded_act_would_raise() -> None:
    for error in (NotFound("no"), OSError(errno.ENOENT, "anything"), KeyError("a bug")):
        found = attempted("x", partial(fail, error))
        with pytest.raises(RpcError) as caught:
            guarded("x", partial(fail, error))
        assert isinstance(found, RpcError)
        assert (type(found), found.message) == (type(caught.value), caught.value.message)
    assert attempted("x", lambda: 5) == 5


def missing() -> None:
    raise NotFound("no")


@pytest.mark.parametrize("act", [guarded, attempted])
def test_an_error_is_freed_without_the_collector(act: Callable[..., object]) -> None:
    gc.disable()
    try:
        try:
            found = act("x", missing)
        except RpcError as error:
            found = error
        watched = weakref.ref(found)
        del found
        assert watched() is None
    finally:
        gc.enable()

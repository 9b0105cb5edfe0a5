from __future__ import annotations

import inspect
from collections.abc import Iterator

import pytest

from execserver.handlers import load_handlers, registry
from execserver.handlers.context import Call
from execserver.handlers.registry import HANDLERS, check_complete, handles
from execserver.handlers.replies import Result
from execserver.protocol.methods import METHODS, PROCESS_READ
from execserver.protocol.process import ReadParams


@pytest.fixture(autouse=True)
def _loaded() -> Iterator[None]:
    load_handlers()
    before = dict(HANDLERS)
    yield
    HANDLERS.clear()
    HANDLERS.update(before)


def test_every_method_has_one_handler() -> None:
    assert HANDLERS.keys() == METHODS.keys()
    assert len(set(HANDLERS.values())) == len(METHODS)


def test_loading_twice_is_loading_once() -> None:
    before = dict(HANDLERS)
    load_handlers()
    assert before == HANDLERS


@pytest.mark.parametrize("name", sorted(METHODS))
def test_a_handler_takes_the_params_its_method_declares(name: str) -> None:
    call, params = inspect.signature(HANDLERS[name]).parameters.values()
    assert call.annotation == "Call"
    assert str(params.annotation).rpartition(".")[2] == METHODS[name].params.__name__
    assert HANDLERS[name].__doc__


def test_a_second_handler_is_refused() -> None:
    with pytest.raises(ValueError, match="process/read has two handlers"):

        @handles(PROCESS_READ)
        def read(call: Call, params: ReadParams) -> Result:
            raise AssertionError


def test_a_method_without_handler_is_told() -> None:
    del HANDLERS["process/read"], HANDLERS["fs/open"]
    with pytest.raises(LookupError, match="fs/open, process/read"):
        check_complete()


def test_a_handler_without_declaration_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "METHODS", {name: METHODS[name] for name in METHODS if name != "fs/open"})
    with pytest.raises(LookupError, match="fs/open"):
        check_complete()

"""Operations are carried out on asyncio: results are sent in, errors and cancellations are thrown in."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from execserver.client.operations.call import Operation, ask
from execserver.protocol.methods import ENVIRONMENT_STATUS
from execserver_client._driving import adrive


class Answering:
    """A session that answers each call with the next of some results, or raises it."""

    def __init__(self, *results: object) -> None:
        self._results = list(results)

    async def call(self, *_: object, **__: object) -> Any:
        result = self._results.pop(0)
        if isinstance(result, BaseException):
            raise result
        return result


def two_calls() -> Operation[list[object]]:
    answers: list[object] = []
    for _ in range(2):
        try:
            answers.append((yield from ask(ENVIRONMENT_STATUS, ENVIRONMENT_STATUS.params())))
        except (ValueError, asyncio.CancelledError) as error:
            answers.append(type(error))
    return answers


@pytest.mark.parametrize("failure", [ValueError("refused"), asyncio.CancelledError()])
def test_answers_are_sent_in_and_failures_thrown_in(failure: BaseException) -> None:
    assert asyncio.run(adrive(Answering("one", "two"), two_calls())) == ["one", "two"]
    assert asyncio.run(adrive(Answering(failure, "after"), two_calls())) == [type(failure), "after"]


def test_what_the_operation_does_not_handle_reaches_the_caller() -> None:
    with pytest.raises(KeyError, match="unexpected"):
        asyncio.run(adrive(Answering(KeyError("unexpected")), two_calls()))

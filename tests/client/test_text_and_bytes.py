"""Text in the place of bytes, and bytes in that of text, are refused: their base64 would be taken."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from execserver.client.operations import ports as asking
from execserver.client.rules.body_log import http_params
from execserver.client.rules.port_log import PortLog
from execserver.client.rules.process_state import ProcessState
from execserver.client.rules.starting import start_params

BASE64: Any = "abcd"  # also of three bytes


def start(argv: Any, **changed: Any) -> object:
    given: dict[str, Any] = dict.fromkeys(
        ("env", "env_policy", "arg0", "sandbox", "process_id", "process_name")
    )
    return start_params(argv, cwd="/", tty=False, pipe_stdin=False, **{**given, **changed})


@pytest.mark.parametrize(
    "begin",
    [
        lambda: start(["echo", b"x"]),
        lambda: start([bytearray(b"echo")]),
        lambda: start(["echo"], env={"NAME": b"x"}),
        lambda: start(["echo"], arg0=b"x"),
    ],
)
def test_words_of_a_command_are_text(begin: Callable[[], object]) -> None:
    with pytest.raises(TypeError, match="text is needed here, not bytes"):
        begin()


def first_of(steps: Iterator[object]) -> object:
    return next(steps)


@pytest.mark.parametrize(
    "send",
    [
        lambda: first_of(ProcessState("p", sandboxed=False).writing(BASE64)),
        lambda: first_of(PortLog("p").pieces(BASE64)),
        lambda: first_of(asking.connect(asking.place("p", "h", 1, None), PortLog("p"), BASE64)),
        lambda: http_params("1", "POST", "http://h", (), BASE64, None, stream=False),
    ],
)
def test_what_is_sent_is_bytes(send: Callable[[], object]) -> None:
    with pytest.raises(TypeError, match="bytes are needed here, not text"):
        send()

"""Log lines: levels, forms, secrets, and that writing one never waits."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from execserver import log
from execserver.log import LineFormatter, Redactor, StderrHandler, level_from_environment


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    """A pipe whose reading end does not wait."""
    reader, writer = os.pipe()
    os.set_blocking(reader, False)
    yield reader, writer
    os.close(reader)
    os.close(writer)


def record(message: str, level: int = logging.INFO) -> logging.LogRecord:
    made = logging.LogRecord("execserver.app", level, __file__, 1, message, (), None)
    made.created = 1_770_000_000.25
    return made


def handler(descriptor: int, form: str = "text") -> StderrHandler:
    made = StderrHandler(descriptor)
    made.setFormatter(LineFormatter(form, Redactor()))
    return made


def test_a_text_line_has_time_level_target_and_message() -> None:
    line = LineFormatter("text", Redactor()).format(record("execserver listening on ws://127.0.0.1:1"))
    assert (
        line == "2026-02-02T02:40:00.250000Z  INFO execserver.app: execserver listening on ws://127.0.0.1:1"
    )


def test_a_json_line_is_one_object() -> None:
    line = LineFormatter("json", Redactor()).format(record("two\nlines", logging.ERROR))
    assert json.loads(line) == {
        "time": "2026-02-02T02:40:00.250000Z",
        "level": "error",
        "target": "execserver.app",
        "message": "two\nlines",
    }


def test_a_traceback_is_part_of_its_record() -> None:
    made = record("failed", logging.ERROR)
    try:
        raise ValueError("token=hunter2hunter2")
    except ValueError as error:
        made.exc_info = (type(error), error, error.__traceback__)
    lines = LineFormatter("text", Redactor()).format(made).splitlines()
    assert lines[0].endswith("failed")
    assert all(line.startswith("  ") for line in lines[1:])
    assert lines[-1] == "  ValueError: token=[redacted]"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("authorization: Bearer abc.def-1", "authorization: Bearer [redacted]"),
        ("Proxy-Authorization: basic dTpw", "Proxy-Authorization: basic [redacted]"),
        ("dial ws://me:pw@host:1/x", "dial ws://[redacted]@host:1/x"),
        ("GET /?token=abc&x=1", "GET /?token=[redacted]&x=1"),
        ('{"api_key": "abc", "a": 1}', '{"api_key": "[redacted]", "a": 1}'),
        ("OPENAI_API_KEY=abc PATH=/bin", "OPENAI_API_KEY=[redacted] PATH=/bin"),
        ("key sk-abcdefgh1234 used", "key [redacted] used"),
        ("got xst1.0123456789abcdef.l-ci.abcDEF-_9 here", "got xst1.0123456789abcdef.[redacted] here"),
        ("nothing here: ws://127.0.0.1:1", "nothing here: ws://127.0.0.1:1"),
    ],
)
def test_what_looks_like_a_secret_is_taken_out(text: str, expected: str) -> None:
    assert Redactor()(text) == expected


def test_values_of_telling_variables_are_taken_out_wherever_they_stand() -> None:
    redact = Redactor.from_environment({"MY_TOKEN": "swordfish1", "HOME": "/home/somebody", "A_KEY": "short"})
    assert redact("say swordfish1 in /home/somebody, short") == "say [redacted] in /home/somebody, short"


def test_the_longer_of_two_nested_secrets_goes_as_a_whole() -> None:
    assert Redactor(["swordfish", "swordfish-2026"])("x swordfish-2026 y") == "x [redacted] y"


_PIECES = st.sampled_from(
    [
        *(
            "Bearer",
            "bearer ",
            "BASIC ",
            "://",
            "a@",
            "to",
            "ken",
            "TOKEN=",
            "secret",
            "passwd",
            "passwrd:",
            "_",
        ),
        *("api", "key", "api-key=", "sk-", "abcdefgh", "xst1.", "0123456789abcdef", ".x", "\u017f", "\u212a"),
        *(" ", '"', "=", "\n", "PASSWOD=", "paSSword ="),
    ]
)


@given(st.lists(_PIECES, max_size=9).map("".join) | st.text())
def test_a_text_that_is_not_tried_with_the_patterns_holds_nothing_they_match(text: str) -> None:
    tried = text
    for pattern, replacement in log._PATTERNS:
        tried = pattern.sub(replacement, tried)
    assert Redactor()(text) == tried


@given(st.text())
def test_redaction_takes_any_text(text: str) -> None:
    assert isinstance(Redactor(["swordfish1"])(text), str)


def test_a_full_stderr_drops_lines_and_says_how_many(pipe: tuple[int, int]) -> None:
    reader, writer = pipe
    handled = handler(writer)
    written = 0
    while not handled.dropped:
        handled.emit(record("x" * 4000))
        written += 1
    handled.emit(record("lost too"))
    assert handled.dropped == 2
    while len(os.read(reader, 1 << 20)) == 1 << 20:
        pass
    handled.emit(record("back"))
    text = os.read(reader, 1 << 16).decode()
    assert text.startswith("(2 log lines were dropped here: stderr was full)\n")
    assert text.endswith("execserver.app: back\n")
    assert handled.dropped == 0


def test_a_line_fits_one_piece_of_a_pipe(pipe: tuple[int, int]) -> None:
    reader, writer = pipe
    handler(writer).emit(record("\u00e4" * 5000))
    data = os.read(reader, 1 << 16)
    assert len(data) <= 4096
    assert data.decode().endswith("\u00e4 ...\n")


def test_a_closed_stderr_is_no_error() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    handled = handler(writer)
    handled.emit(record("nobody reads"))
    os.close(writer)
    handled.emit(record("nobody is there"))
    assert handled.dropped == 2


@pytest.mark.parametrize(
    ("variables", "level"),
    [
        ({}, "warn"),
        ({"EXECSERVER_LOG": "debug"}, "debug"),
        ({"EXECSERVER_LOG": "INFO"}, "info"),
        ({"RUST_LOG": "info"}, "info"),
        ({"EXECSERVER_LOG": "error", "RUST_LOG": "info"}, "error"),
        ({"RUST_LOG": "warn,codex_exec_server=trace"}, "trace"),
        ({"RUST_LOG": "codex_exec_server::server=debug,hyper=trace"}, "debug"),
        ({"RUST_LOG": "hyper=trace"}, "warn"),
        ({"EXECSERVER_LOG": "loud"}, "warn"),
        ({"EXECSERVER_LOG": "off"}, "off"),
    ],
)
def test_the_level_comes_from_either_variable(variables: dict[str, str], level: str) -> None:
    assert level_from_environment(variables) == level


def test_configuring_twice_leaves_one_handler() -> None:
    root = logging.getLogger()
    own = logging.getLogger("execserver")
    before, root_level, own_level = list(root.handlers), root.level, own.level
    try:
        log.configure("debug", "json", {})
        log.configure("off", "text", {})
        assert sum(isinstance(each, StderrHandler) for each in root.handlers) == 1
        assert not own.isEnabledFor(logging.CRITICAL)
    finally:
        root.handlers[:] = before
        root.setLevel(root_level)
        own.setLevel(own_level)


def test_further_secrets_can_be_added_and_known_ones_alone_taken_out() -> None:
    redact = Redactor(["first-secret"])
    redact.add(["later-secret", "short"])
    text = "bearer token: first-secret later-secret short"
    assert redact.without_known(text) == "bearer token: [redacted] [redacted] short"
    assert "secret" not in redact(text)


def test_the_log_in_use_can_be_told_of_further_secrets() -> None:
    root = logging.getLogger()
    before = list(root.handlers)
    try:
        log.configure("warn", "text", {})
        log.active_redactor().add(["a-later-secret"])
        made = next(each for each in root.handlers if isinstance(each, StderrHandler))
        assert "a-later-secret" not in made.format(record("it is a-later-secret"))
    finally:
        for each in [each for each in root.handlers if each not in before]:
            root.removeHandler(each)


def test_a_default_level_holds_where_nothing_is_asked_for() -> None:
    assert level_from_environment({}, "info") == "info"
    assert level_from_environment({"EXECSERVER_LOG": "error"}, "info") == "error"


def test_the_journal_is_told_the_level_of_each_line(pipe: tuple[int, int]) -> None:
    reader, writer = pipe
    facts = os.fstat(writer)
    assert log.is_journal(f"{facts.st_dev}:{facts.st_ino}", writer)
    assert not log.is_journal(f"{facts.st_dev}:{facts.st_ino + 1}", writer)
    assert not log.is_journal("", writer)
    assert not log.is_journal("1:2", 9999)
    made = StderrHandler(writer, with_priority=True)
    made.setFormatter(LineFormatter("text", Redactor()))
    made.emit(record("two\nlines", logging.WARNING))
    first, second = os.read(reader, 4096).decode().splitlines()
    assert first == "<4>2026-02-02T02:40:00.250000Z  WARN execserver.app: two"
    assert second == "<4>  lines"

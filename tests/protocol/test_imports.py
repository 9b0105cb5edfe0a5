from __future__ import annotations

import subprocess
import sys

import pytest

HEAVY = (
    "msgspec",
    "gevent",
    "websockets",
    "typing",
    "dataclasses",
    "logging",
    "subprocess",
    "pathlib",
    "json",
)


def loaded_by(statement: str) -> set[str]:
    """Return the modules a fresh interpreter has loaded after a statement, beyond those it starts with."""
    program = f"import sys; before = set(sys.modules); {statement}; print(*(set(sys.modules) - before))"
    command = [sys.executable, "-S", "-c", f"import sys; sys.path.insert(0, {sys.path[0]!r}); {program}"]
    run = subprocess.run(command, capture_output=True, text=True, check=True)
    return set(run.stdout.split())


@pytest.mark.parametrize(
    "statement",
    [
        "from execserver.protocol import errors",
        "import execserver.protocol.error_texts",
        "import execserver.protocol.base64",
        "import execserver.protocol.sandbox, execserver.protocol.sandbox_policy",
        "import execserver.sandbox.policy.request_check",
    ],
)
def test_what_helpers_use_needs_only_the_standard_library(statement: str) -> None:
    loaded = loaded_by(statement)
    assert "execserver.protocol" in loaded
    assert loaded.isdisjoint(HEAVY)


@pytest.mark.parametrize(
    "statement",
    ["import execserver._helpers.codex_fs", "import execserver._helpers.linux_sandbox_cleanup"],
)
def test_a_program_that_answers_once_loads_nothing_that_takes_long(statement: str) -> None:
    loaded = loaded_by(statement)
    assert statement.removeprefix("import ") in loaded
    assert loaded.isdisjoint((*HEAVY, "collections", "enum", "functools", "re"))


def test_the_records_come_with_the_first_name_asked_for() -> None:
    assert "msgspec" in loaded_by(f"sys.path += {sys.path!r}; from execserver.protocol import ReadParams")

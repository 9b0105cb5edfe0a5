"""--limit-process and --limit-session."""

from __future__ import annotations

import pytest

from execserver.box.commands.running import limits_of
from execserver.cli import parse
from execserver.leaving import Leave
from execserver.limit_options import limits_of_command
from execserver.protocol.resource_limits import LimitEnforcement, ResourceLimits
from execserver.verbs.boxed import program
from execserver.verbs.run import HELP


def settings(*words: str) -> dict[str, float]:
    return parse(list(words)).settings


def test_every_limit_has_a_name_and_a_unit() -> None:
    words = ["memory=512M", "processes=50", "cpu=150%", "time=90s", "cpu-time=2m", "file=1G", "open-files=64"]
    assert settings(*(f"--limit-process={word}" for word in words), "--limit-process", "enforce=best") == {
        "limit_process_memory_bytes": 512 * 1024**2,
        "limit_process_processes": 50,
        "limit_process_cpu_percent": 150,
        "limit_process_wall_ms": 90_000,
        "limit_process_cpu_ms": 120_000,
        "limit_process_file_bytes": 1024**3,
        "limit_process_open_files": 64,
        "limit_process_best": 1,
    }


def limits(*words: str) -> ResourceLimits | None:
    found = program("run", HELP, "")
    return limits_of(limits_of_command(found, found.parse([f"--limit={word}" for word in words]).words))


def test_a_command_has_the_same_names_and_units() -> None:
    words = ["memory=512M", "processes=50", "cpu=150%", "time=90s", "cpu-time=2m", "file=1G", "open-files=64"]
    assert limits(*words, "enforce=best") == ResourceLimits(
        memory_bytes=512 * 1024**2,
        processes=50,
        cpu_percent=150,
        wall_ms=90_000,
        cpu_ms=120_000,
        file_bytes=1024**3,
        open_files=64,
        enforce=LimitEnforcement.BEST,
    )
    assert limits("enforce=kernel") == ResourceLimits()
    assert limits() is None


def test_sessions_have_fewer_and_the_last_value_counts() -> None:
    assert settings(
        *("--limit-session", "memory=1G", "--limit-session=processes=7", "--limit-session=processes=9")
    ) == {"limit_session_memory_bytes": 1024**3, "limit_session_processes": 9}


@pytest.mark.parametrize(
    ("option", "word", "expected"),
    [
        ("process", "memory=7M", "memory= and a size of at least 8M, such as 512M"),
        ("process", "memory=99999T", "memory= and a size of at least 8M, such as 512M"),
        ("process", "memory", "memory= and a size of at least 8M, such as 512M"),
        ("process", "processes=0", "processes= and a number of at least 1"),
        ("process", "cpu=50", "cpu= and a part of one CPU of at least 1%, such as 150%"),
        ("process", "time=0s", "time= and a number and ms, s, m, h or d, such as 90s"),
        ("process", "open-files=3", "open-files= and a number of at least 16"),
        ("process", "file=-1", "file= and a size, such as 100M"),
        ("process", "enforce=maybe", "enforce= and kernel or best"),
        ("session", "time=1s", "one of memory, processes, cpu, each with =VALUE"),
    ],
)
def test_a_mistake_is_named(option: str, word: str, expected: str) -> None:
    with pytest.raises(Leave) as left:
        parse([f"--limit-{option}", word])
    assert left.value.status == 2
    shown = f"invalid value '{word}' for '--limit-{option} <NAME=VALUE>': expected {expected}"
    assert shown in left.value.stderr

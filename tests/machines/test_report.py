"""The record and the page of what was found: every check has its place, and what is not well its reason."""

from __future__ import annotations

from pathlib import Path

from tests.machines.conditions import CONDITIONS
from tests.machines.matrix import CELLS, Cell, chosen, row
from tests.machines.report import (
    CHECKS,
    CONDITION,
    CONDITION_CHECKS,
    PAGE,
    USERS,
    Row,
    keep,
    key,
    load,
    not_run,
    page,
    read,
)

DAY = "2026-11-24"
LINES = [
    "kernel 6.1.0",
    "user root",
    "doctor Linux 6.1.0, user 0",
    "doctor   yes  workspace-write      native (older mount calls)",
    "pages 16384",
    *(f"ok {check}: 2 s" for check in CHECKS),
    "user person",
    "no first start: 2 trees",
    "doctor   no   workspace-write      the kernel is too old",
    "ok self-test: 3 s",
    "no replay: 06-fs: expected a file",
    "left out attacks: refused: no sandbox: none",
    "nonsense",
]


def test_each_user_has_a_result_of_each_check() -> None:
    found = read(LINES, 12.0)
    assert set(found.checks) == {(user, check) for user in USERS for check in CHECKS}
    assert (found.kernel, found.page_bytes) == ("6.1.0", 16384)
    assert found.sandboxes == {"root": "native (older mount calls)", "person": "refused"}
    assert found.checks["root", "shell tool"] == ("yes", "2 s")
    assert found.checks["person", "attacks"] == ("-", "refused: no sandbox: none")


def test_what_a_machine_did_not_come_to_has_failed() -> None:
    assert read(LINES, 1.0).failures == [
        "first start as user: 2 trees",
        "replay as user: 06-fs: expected a file",
        "architectures as user: it did not come to that",
        "shell tool as user: it did not come to that",
    ]
    assert len(read([], 1.0).failures) == len(USERS) * len(CHECKS)


def test_the_page_has_a_row_for_each_machine_and_the_reasons() -> None:
    rows = [
        Row("Debian 12", "aarch64", "", DAY, read(LINES, 1.0)),
        Row("Ubuntu 18.04", "x86_64", "", DAY, not_run("apt knows no place")),
        Row("no /sys", "x86_64", CONDITION, DAY, read(LINES, 1.0, CONDITION_CHECKS)),
    ]
    lines = page(rows).splitlines()
    assert (
        "| Debian 12, aarch64 | 6.1.0, 16 KiB pages | yes / no | yes | yes / no | yes / - | yes / no "
        "| yes / no | native (older mount calls) / refused | 2026-11-24 |" in lines
    )
    assert "| Ubuntu 18.04, x86_64 | not run |  |  |  |  |  |  | | 2026-11-24 |" in lines
    assert "- Ubuntu 18.04, x86_64: not run, apt knows no place." in lines
    assert "- Debian 12, aarch64: attacks as user: refused: no sandbox: none." in lines
    assert (
        "| no /sys | 6.1.0, x86_64, 16 KiB pages | yes / no | yes | yes / no | yes / - "
        "| native (older mount calls) / refused | 2026-11-24 |" in lines
    )


def test_a_record_keeps_the_newest_of_each_row_and_nothing_that_is_not_wanted(tmp_path: Path) -> None:
    record = tmp_path / "found.json"
    old = Row("Debian 12", "aarch64", "", "2026-11-01", not_run("none"))
    new = Row("Debian 12", "aarch64", "", DAY, read(LINES, 1.0))
    condition = Row("no /sys", "aarch64", CONDITION, DAY, read(LINES, 1.0, CONDITION_CHECKS))
    wanted = [key(old), key(condition)]
    assert keep(condition, wanted, record) == [condition]
    assert keep(Row("gone", "x86_64", "", DAY, not_run("")), wanted, record) == [condition]
    assert keep(old, wanted, record) == [old, condition]
    assert keep(new, wanted, record) == load(record) == [new, condition]
    elsewhere = condition._replace(architecture="x86_64")
    assert keep(elsewhere, wanted, record) == [new, elsewhere]


def test_the_page_is_what_the_record_gives() -> None:
    assert PAGE.read_text() == page(load())


def test_every_machine_and_condition_has_a_place_of_its_own() -> None:
    keys = [key(row(each, not_run(""), DAY)) for each in chosen([])]
    assert len(set(keys)) == len(keys)
    assert [key(each) for each in load()] == [each for each in keys if each in map(key, load())]


def test_words_choose_machines_and_conditions() -> None:
    assert chosen([]) == [*CELLS, *CONDITIONS]
    assert chosen(["condition"]) == list(CONDITIONS)
    arm = chosen(["aarch64"])
    assert {each.architecture for each in arm if isinstance(each, Cell)} == {"aarch64"}
    assert [each.name for each in chosen(["16k", "no /sys"])] == ["Debian 13", "no /sys"]

"""The page of what was found in machines: every check has its place, and what is not well its reason."""

from __future__ import annotations

import datetime

from tests.machines.matrix import CELLS, chosen
from tests.machines.report import CHECKS, PAGE, USERS, Row, not_run, page, read

DAY = datetime.date(2026, 11, 24)
LINES = [
    "kernel 6.1.0",
    "user root",
    "doctor Linux 6.1.0, user 0",
    "doctor   yes  workspace-write      native (older mount calls)",
    "pages 16384",
    *(f"ok {check}: 2 s" for check in CHECKS),
    "user person",
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
        "replay as user: 06-fs: expected a file",
        "architectures as user: it did not come to that",
        "shell tool as user: it did not come to that",
    ]
    assert len(read([], 1.0).failures) == len(USERS) * len(CHECKS)


def test_the_page_has_a_row_for_each_machine_and_the_reasons() -> None:
    rows = [
        Row("Debian 12", "aarch64", "", read(LINES, 1.0)),
        Row("Ubuntu 18.04", "x86_64", "", not_run("apt knows no place")),
    ]
    text = page(rows, DAY)
    assert "2026-11-24" in text
    assert (
        "| Debian 12, aarch64 | 6.1.0, 16 KiB pages | yes | yes / no | yes / - | yes / no | yes / no "
        "| native (older mount calls) / refused |" in text.splitlines()
    )
    assert "| Ubuntu 18.04, x86_64 | not run |  |  |  |  |  | |" in text.splitlines()
    assert "- Ubuntu 18.04, x86_64: not run, apt knows no place." in text
    assert "- Debian 12, aarch64: attacks as user: refused: no sandbox: none." in text


def test_the_page_that_is_kept_is_of_these_machines() -> None:
    lines = PAGE.read_text().splitlines()
    (head,) = [line for line in lines if line.startswith("| system |")]
    assert head == f"| system | kernel | {' | '.join(CHECKS)} | sandbox |"
    shown = lines[lines.index(head) + 2 :][: len(CELLS)]
    named = [line.split(" |")[0].removeprefix("| ") for line in shown]
    assert named == [", ".join(filter(None, (cell.name, cell.architecture, cell.note))) for cell in CELLS]


def test_words_choose_machines() -> None:
    assert chosen([]) == list(CELLS)
    assert {cell.architecture for cell in chosen(["aarch64"])} == {"aarch64"}
    assert [cell.package for cell in chosen(["16k"])] == ["linux-image-arm64-16k"]

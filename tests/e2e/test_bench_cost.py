"""`build.py bench cost`: every row does its operation, and budgets are kept."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench import cost, cost_doors, cost_egress, cost_rows, cost_starts, trapped_calls
from bench.cost_rows import CostRow
from tests.support.server_process import OURS, ServerProcess
from tests.support.source import ROOT

DIRECT = [row for row in cost_rows.ROWS if row.subject == cost_rows.SERVER]  # the others need a relay
OWN = [row for row in DIRECT if row.name.startswith("port_")]  # the reference has none of that


@pytest.mark.parametrize("row", [row for row in DIRECT if row not in OWN], ids=lambda row: row.name)
def test_each_operation_is_one_that_the_server_does(
    row: CostRow, server: ServerProcess, tmp_path: Path
) -> None:
    row.act(server.url, tmp_path, 2)


@pytest.mark.ours_only("0.142.0 forwards no ports")
@pytest.mark.parametrize("row", OWN, ids=lambda row: row.name)
def test_each_transfer_is_one_over_a_forwarded_connection(
    row: CostRow, server: ServerProcess, tmp_path: Path
) -> None:
    row.act(server.url, tmp_path, 2)


@pytest.mark.ours_only("0.142.0 has no network proxy")
@pytest.mark.parametrize("row", cost_egress.EGRESS, ids=lambda row: row.name)
def test_each_connection_is_one_through_a_network_proxy(
    row: CostRow, server: ServerProcess, tmp_path: Path
) -> None:
    row.act(server.url, tmp_path, 2)


@pytest.mark.parametrize(
    ("figures", "excess"),
    [
        ({"instructions": 104.9, "calls": 9.0}, []),
        ({"instructions": 105.1}, ["info: 105.1 thousand instructions, budget 100.0"]),
        ({"calls": 4.6}, []),
    ],
)
def test_what_is_above_its_budget_is_told(figures: dict[str, float], excess: list[str]) -> None:
    budgets = {"info": {"instructions": 100.0, "calls": 4.0, "switches": 20.0}}
    assert cost.over_budget({"info": figures, "new": figures}, budgets) == excess


def test_budgets_are_read_as_they_were_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cost, "BUDGETS", tmp_path / "budgets.toml")
    assert cost.budgets() == {}
    figures = {"info": {"instructions": 82.5, "calls": 4.0}, "key": {"switches": 4.1}}
    cost.BUDGETS.write_text(cost.budgets_text(figures))
    assert cost.budgets() == figures


def test_every_row_has_its_budgets() -> None:
    found = {name: set(budget) for name, budget in cost.budgets().items()}
    rows = (*cost_rows.ROWS, *cost_egress.EGRESS, *cost_doors.DOORS)
    operations = {row.name: set(cost.COLUMNS) for row in rows}
    starts = {row.name: {cost.INSTRUCTIONS} for row in cost_starts.STARTS}
    assert found == operations | starts | {row.name: {cost.CALLS} for row in trapped_calls.TRAPPED}


def test_an_exec_supervisor_has_a_budget_of_calls() -> None:
    budgets = {"trapped_inside": {"calls": 10.0}, "trapped_outside": {"calls": 100.0}}
    figures = {"trapped_inside": {"calls": 11.4}, "trapped_outside": {"calls": 116.0}}
    assert cost.over_budget(figures, budgets) == ["trapped_outside: 116.0 system calls, budget 100.0"]


def test_to_ask_who_comes_costs_little_beside_the_connection() -> None:
    """Of the server's own instructions, which are some of the time that a client waits; for a known token."""
    budgets = cost.budgets()
    plain = budgets["connect"][cost.INSTRUCTIONS]
    for name, most in (("connect_token", 1.2), ("connect_jwt", 1.3), ("connect_oidc", 1.5)):
        assert budgets[name][cost.INSTRUCTIONS] <= most * plain


@pytest.mark.parametrize("row", cost_doors.DOORS, ids=lambda row: row.name)
def test_each_door_opens_for_its_token(row: CostRow, tmp_path: Path) -> None:
    cost_doors.lay_files(tmp_path)
    options = [word.format(place=tmp_path) for word in row.options]
    with ServerProcess(OURS, options=options, cwd=ROOT) as server:
        row.act(server.url, tmp_path, 2)


def test_the_table_leaves_open_what_was_not_counted() -> None:
    row = cost_rows.ROWS[0]
    assert cost.table([row], {row.name: {"calls": 4.04}}).splitlines()[-1] == (
        "| info | environment/info |  | 4.0 |  |"
    )

"""`execserver network log`: what it shows of an audit log, and its statuses."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from execserver.audit.chain import digest_of, line_of
from execserver.audit.segments import Segments
from execserver.verbs import network


@pytest.fixture
def folder(tmp_path: Path) -> str:
    path = str(tmp_path / "log")
    segments = Segments(path)
    head = segments.end.head
    records: list[tuple[str, dict[str, object]]] = [
        ("start", {"process": "p"}),
        ("network", {"process": "p", "host": "a.example", "port": 443, "protocol": "https_connect"}),
        ("network", {"process": "q", "host": "2001:db8::1", "port": 22, "protocol": "socks5_tcp"}),
        ("network", {"process": "q", "others": True, "times": 10}),
        (
            "network",
            {
                "process": "r",
                "host": "b.example",
                "port": 80,
                "protocol": "http",
                "rules": ["http://b.example"],
            },
        ),
    ]
    for number, (event, members) in enumerate(records, 1):
        if "host" in members:
            allowed = members["process"] == "p"
            members["decision"], members["reason"] = ("allow", "allow") if allowed else ("deny", "denied")
        line = line_of(number, f"2026-01-0{number}T00:00:00.000Z", event, members, head)
        segments.append(line)
        head = digest_of(line)
    segments.close()
    return path


def shown(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], *words: str) -> tuple[int, str]:
    monkeypatch.setattr(sys, "argv", ["execserver", *words])
    status = network.main()
    out, err = capfd.readouterr()
    return status, out or err


def test_each_connection_is_a_line(
    folder: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    assert shown(monkeypatch, capfd, "log", folder) == (
        0,
        "2026-01-02T00:00:00.000Z  p             allow  https://a.example:443\n"
        "2026-01-03T00:00:00.000Z  q             deny   socks5://[2001:db8::1]:22  (denied)\n"
        "2026-01-04T00:00:00.000Z  q             further destinations  10 times\n"
        "2026-01-05T00:00:00.000Z  r             deny   http://b.example:80  (denied); "
        'to let it through: allow = ["http://b.example"]\n',
    )


def test_one_can_look_for_a_process_and_for_refusals(
    folder: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    _, of_p = shown(monkeypatch, capfd, "log", folder, "--process", "p", "--json")
    assert [json.loads(line)["host"] for line in of_p.splitlines()] == ["a.example"]
    _, refused = shown(monkeypatch, capfd, "log", folder, "--refused")
    assert [line.split()[1] for line in refused.splitlines()] == ["q", "q", "r"]
    assert shown(monkeypatch, capfd, "log", folder, "--since", "1s") == (0, "")


@pytest.mark.parametrize(
    ("words", "status", "told"),
    [
        ((), 2, "an action is missing"),
        (("show",), 2, "unexpected argument 'show' found"),
        (("log",), 2, "<DIR>"),
        (("log", "/nonexistent"), 1, "/nonexistent: No such file or directory"),
        (("log", "/", "--since", "x"), 2, "invalid value 'x' for '--since <TIME>'"),
        (("--help",), 0, "Usage: execserver network log"),
    ],
)
def test_mistakes_are_told(
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    words: tuple[str, ...],
    status: int,
    told: str,
) -> None:
    found, text = shown(monkeypatch, capfd, *words)
    assert (found, told in text) == (status, True), text

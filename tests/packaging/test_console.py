"""The built files carry the pages of the console, and xterm.js where it could be had."""

from __future__ import annotations

import signal
import urllib.request
from pathlib import Path
from urllib.error import HTTPError

import pytest

from tests.support.one_file import LIMIT_S, Box
from tests.support.source import ROOT
from tools.freeze import console
from tools.problems import Problem


def got(url: str) -> int:
    """Return the status of an answer."""
    try:
        with urllib.request.urlopen(url, timeout=LIMIT_S) as answer:
            assert len(answer.read()) == int(answer.headers["content-length"])
            return int(answer.status)
    except HTTPError as error:
        with error:
            return error.code


@pytest.mark.unpacked
def test_the_pages_are_served(box: Box) -> None:
    licences = box.run(["licenses"]).stdout
    running = box.start(["web", "--no-open"])
    try:
        assert running.stdout is not None
        url = running.stdout.readline().decode().strip()
        statuses = {name: got(url + name) for name in console.carried(ROOT)}
        assert set(statuses.values()) == {200}
        assert "index.html" in statuses
        has_xterm = got(f"{url}xterm.js") == 200
        assert has_xterm is (b"\n  xterm.js 5.5.0: MIT" in licences)
    finally:
        running.send_signal(signal.SIGINT)
        _, errors = running.communicate(timeout=LIMIT_S)
    assert running.returncode == 128 + signal.SIGINT
    assert (b"built without the terminal" in errors) is not has_xterm


def test_another_xterm_than_the_pinned_one_is_refused(tmp_path: Path) -> None:
    with pytest.raises(Problem, match="is not @xterm/xterm@"):
        console.unpacked(b"something else")
    (tmp_path / "build" / "xterm").mkdir(parents=True)
    (tmp_path / "build" / "xterm" / "xterm.js").write_bytes(b"something else")
    (tmp_path / "execserver" / "box" / "web" / "static").mkdir(parents=True)
    (tmp_path / "execserver" / "box" / "web" / "static" / "index.html").write_bytes(b"x")
    assert console.carried(tmp_path) == {"index.html": b"x"}
    assert console.licence(tmp_path) == []


def test_without_npm_the_build_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    console.fetch(tmp_path)
    told = capsys.readouterr()
    assert "the console is built without its terminal: there is no npm" in told.out + told.err

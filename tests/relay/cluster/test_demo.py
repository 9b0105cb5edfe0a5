"""`build.py demo cluster`: every step, nothing left behind, and the cure for what a machine lacks."""

from __future__ import annotations

import re
import shutil
import signal
from pathlib import Path

import pytest

from tests.support.relay_process import program
from tests.support.waiting import wait_until
from tests.test_demo import left_in, living, start
from tools.cluster import service
from tools.problems import Problem


def needs_programs() -> None:
    """Skip where Redis or HAProxy is missing."""
    try:
        service.program("redis-server")
        service.program("haproxy")
    except Problem as missing:
        pytest.skip(f"{missing}; {missing.cure}")


@pytest.mark.long
def test_the_demo_plays_every_step_and_leaves_nothing(tmp_path: Path) -> None:
    needs_programs()
    with start(tmp_path, program(), "tools.demo_cluster") as demo:
        shown, errors = demo.communicate(timeout=200)
    assert (demo.returncode, errors) == (0, "")
    lines = shown.splitlines()
    assert len(lines) == 10
    assert all(re.search(r" \d+ ms  \S", line) for line in lines[:-1])
    assert sum("worst pause" in line for line in lines) == 6
    assert re.search(r"6 streams, .* MiB: every byte, no session resumed$", lines[-2])
    assert left_in(tmp_path) == []
    assert living(tmp_path) == []


@pytest.mark.long
def test_an_interrupted_demo_ends_what_it_has_started(tmp_path: Path) -> None:
    needs_programs()
    with start(tmp_path, program(), "tools.demo_cluster") as demo:
        wait_until(lambda: any("redis-server" in words for words in living(tmp_path)), 50)
        demo.send_signal(signal.SIGTERM)
        _, errors = demo.communicate(timeout=50)
    assert demo.returncode == 130
    assert errors.endswith("interrupted; everything is ended\n")
    assert left_in(tmp_path) == []
    wait_until(lambda: living(tmp_path) == [])


def test_a_missing_program_is_named_with_its_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda *rest, **more: None)
    with pytest.raises(Problem) as missing:
        service.program("nginx")
    assert "`nginx`" in missing.value.what
    assert missing.value.cure == "install it: apt-get install nginx"

"""What remote mode does before it loads what serves."""

from __future__ import annotations

import subprocess
import sys

import gevent

from execserver.remote.beginning import begin, load
from execserver.remote.config import RemoteExecutorConfig
from tests.support.source import ROOT

# None of it is needed to register: it is loaded while the registry answers.
LATE = (
    "execserver.server",
    "execserver.handlers",
    "execserver.transports",
    "websockets",
    "h11",
    "tomllib",
    "ssl",
)


def test_the_way_to_the_registry_loads_little() -> None:
    code = (
        f"import sys, execserver.remote.beginning; print([name for name in {LATE!r} if name in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=30, check=True
    )
    assert done.stdout == "[]\n"


def test_what_has_begun_goes_on_before_each_module() -> None:
    turns: list[int] = []

    def go_on() -> None:
        for number in range(3):
            turns.append(number)
            gevent.sleep(0)

    other = gevent.spawn(go_on)
    load(["json"])
    assert turns
    other.join(20)


def test_an_executor_of_may_registers_with_each_connection() -> None:
    assert begin(RemoteExecutorConfig("http://127.0.0.1:1", "e")).registering is None

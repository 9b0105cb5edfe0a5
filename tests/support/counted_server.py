"""An exec-server without a garbage collector, as a process of its own, that counts its objects when asked.

`CountedServer` is the test's side: a `ServerProcess` that runs this module.  It is the product, from the
source; only the collector is turned off once it serves.  At SIGUSR1 it writes its census
(`tests.support.lives`) and, if asked, what holds the objects of some types.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import signal
import sys
import tempfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from tests.support.lives import Census, census, difference, explained
from tests.support.server_process import Flavour, ServerProcess
from tests.support.waiting import wait_until

_FILE_VARIABLE = "COUNTED_SERVER_FILE"
_SETTLE_S = 20.0


class Left(NamedTuple):
    """What some lives left behind, by type, and which cycle or holder keeps it."""

    ours: dict[str, int]
    foreign: dict[str, int]
    explained: str


class CountedServer(ServerProcess):
    """The server; `left_by` plays lives against it."""

    def __init__(self, settings: dict[str, object] | None = None) -> None:
        self._folder = tempfile.TemporaryDirectory()
        self._file = Path(self._folder.name) / "census"
        flavour = Flavour(
            "ours",
            (sys.executable, "-m", "tests.support.counted_server"),
            0,
            {_FILE_VARIABLE: str(self._file), "PYTHONDONTWRITEBYTECODE": "1"},
        )
        super().__init__(flavour, settings=settings, cwd=Path(__file__).resolve().parents[2])

    def release(self) -> None:
        """Close the streams and remove the folder."""
        super().release()
        self._folder.cleanup()

    def left_by(self, life: Callable[[int], object], lives: int, warm_up: int = 3) -> Left:
        """Play `life(number)` so many times and return what the server still holds of it.

        The last of a life may end a moment later than its client knows.
        """
        for number in range(warm_up):
            life(-1 - number)
        before = self._settled()
        for number in range(lives):
            life(number)
        left: list[tuple[dict[str, int], dict[str, int]]] = []

        def nothing() -> bool:
            left.append(difference(before, self._count()[0], lives))
            return not any(left[-1])

        try:
            wait_until(nothing, _SETTLE_S)
        except AssertionError:
            return Left(*left[-1], self._count(*left[-1][0])[1])
        return Left({}, {}, "")

    def _settled(self) -> Census:
        """Return the census of a server that has nothing under way."""
        counts = [self._count()[0]]

        def same() -> bool:
            counts.append(self._count()[0])
            return counts[-1] == counts[-2]

        wait_until(same, _SETTLE_S)
        return counts[-1]

    def _count(self, *to_explain: str) -> tuple[Census, str]:
        self._file.unlink(missing_ok=True)
        _wanted(self._file).write_text(json.dumps(to_explain))
        self.process.send_signal(signal.SIGUSR1)
        wait_until(self._file.exists, 30.0)
        found = json.loads(self._file.read_text())
        return Counter(found["census"]), found["explained"]


def _wanted(file: Path) -> Path:
    """Return the file that names the types to be explained."""
    return file.with_suffix(".wanted")


def _write_census(file: Path) -> None:
    found = census()
    wanted = json.loads(_wanted(file).read_text())
    new = file.with_suffix(".new")
    new.write_text(json.dumps({"census": found, "explained": explained(wanted) if wanted else ""}))
    new.rename(file)


def _serve() -> int:
    from gevent import signal_handler

    from execserver import dispatch

    server: Any = importlib.import_module("execserver.server")
    settle = server.settle_collector
    path = Path(os.environ.pop(_FILE_VARIABLE))

    def settle_and_stop_collecting() -> None:
        settle()
        gc.disable()
        signal_handler(signal.SIGUSR1, _write_census, path)

    server.settle_collector = settle_and_stop_collecting
    sys.argv[0] = sys.modules["execserver"].__file__.replace("__init__", "__main__")  # type: ignore[union-attr]
    return dispatch.main()


if __name__ == "__main__":
    sys.exit(_serve())

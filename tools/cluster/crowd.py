"""A crowd of scripted executors, in several processes; see `crowd_process`."""

from __future__ import annotations

import json
import signal
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

from gevent.pool import Pool

from execserver.relay.engine.address import Credentials, EngineAddress
from execserver.relay.engine.client import Engine
from execserver.relay.engine.line import Dialer
from execserver.relay.engine.tokens import EngineTokens
from execserver.relay.tokens import BOTH, new_token
from tools.cluster.redis_server import RedisServer
from tools.cluster.service import Pause, Service, wait_for
from tools.problems import Failed

MEMBERS_OF_A_PROCESS = 3000
_ROOT = Path(__file__).resolve().parents[2]
_LINE_BYTES = 4096  # longer than any two lines that a process says
_AT_ONCE = 50


class Crowd:
    """The executors of some environments; `close` ends their processes."""

    def __init__(
        self, folder: Path, place: str, tokens: Mapping[str, str], pause: Pause = time.sleep
    ) -> None:
        """Take their places; `place` is the `HOST:PORT` that they come to."""
        self._size, self._pause = len(tokens), pause
        self._processes = []
        pairs = list(tokens.items())
        for at in range(0, len(pairs), MEMBERS_OF_A_PROCESS):
            name = f"crowd{at // MEMBERS_OF_A_PROCESS + 1}"
            file = folder / f"{name}.json"
            part = dict(pairs[at : at + MEMBERS_OF_A_PROCESS])
            file.write_text(json.dumps({"place": place, "tokens": part}))
            command = [sys.executable, "-m", "tools.cluster.crowd_process", str(file)]
            self._processes.append(Service(name, command, folder, pause=pause, cwd=_ROOT))

    def figures(self) -> Counter[str]:
        """Return what has become of them: `registered`, `opened`, `connected`, `lost`, `status 503`...

        Raises Failed when one of the processes has ended.
        """
        total: Counter[str] = Counter()
        for process in self._processes:
            process.must_run()
            total.update(_last_line(process.log))
        return total

    def register(self, seconds: float) -> None:
        """Start the processes, and wait until all are registered.  Raises Failed."""
        for process in self._processes:
            process.start()
        self._wait_for("registered", self._size, seconds)

    def connect(self, seconds: float) -> None:
        """Have all connect.  Raises Failed."""
        self._tell()
        self._wait_for("connected", self._size, seconds)

    def connect_anew(self, seconds: float) -> None:
        """Have each connect once more, in the place of its former websocket.  Raises Failed."""
        opened = self.figures()["opened"]
        self._tell()
        self._wait_for("opened", opened + self._size, seconds)
        self._wait_for("connected", self._size, seconds)

    def close(self) -> None:
        """End them."""
        for process in self._processes:
            process.kill()

    def _tell(self) -> None:
        for process in self._processes:
            process.send(signal.SIGUSR1)

    def _wait_for(self, figure: str, value: int, seconds: float) -> None:
        try:
            wait_for(lambda: self.figures()[figure] >= value, f"{figure} {value}", seconds, self._pause)
        except Failed as error:
            raise Failed(f"the crowd: {error}, but {dict(self.figures())}") from None


def tokens_in_engine(server: RedisServer, environment_ids: Sequence[str]) -> dict[str, str]:
    """Store a token for each environment by one connection; return their texts."""
    dialer = Dialer(EngineAddress(False, ((server.host, server.port),)), Credentials(), {})
    engine = Engine(dialer, (), lambda result: None)
    engine.start()
    try:
        book = EngineTokens(engine)
        made = {name: new_token(name, BOTH) for name in environment_ids}
        pool = Pool(_AT_ONCE)
        jobs = [pool.spawn(book.add, token) for token, _ in made.values()]
        for job in jobs:
            job.get()
    finally:
        engine.close()
    return {name: text for name, (_, text) in made.items()}


def _last_line(log: Path) -> dict[str, int]:
    """Return the figures that a process told last; none before its first line is whole."""
    if not log.exists():
        return {}
    with log.open("rb") as file:
        file.seek(max(0, log.stat().st_size - _LINE_BYTES))
        lines = [line for line in file.read().split(b"\n")[:-1] if line.endswith(b"}")]
    if not lines:
        return {}
    figures: dict[str, int] = json.loads(lines[-1])
    return figures

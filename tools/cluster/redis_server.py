"""Redis servers and their Sentinels, and the few questions that a test or a demo asks of them."""

from __future__ import annotations

import shutil
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from gevent import socket

from execserver.relay.engine.resp import Decoder, Failure, Reply, Word, encode
from tools.cluster.service import Pause, Service, free_port, program, wait_for

PRIMARY = "relay"  # what the Sentinels call it
DOWN_AFTER_MS = 1000
_ANSWER_S = 5.0


class RedisServer:
    """A Redis with an append-only file in its folder; `replica_of` makes it copy another one."""

    def __init__(
        self,
        folder: Path,
        *,
        name: str = "redis",
        host: str = "127.0.0.1",
        replica_of: RedisServer | None = None,
        options: Mapping[str, str] | None = None,
        prefix: Sequence[str] = (),
        pause: Pause = time.sleep,
    ) -> None:
        """Take its place; `options` are further lines of its configuration.  Raises Problem."""
        self.host = host
        self.port = free_port(host)
        self._folder = folder / name
        self._folder.mkdir()
        lines = {
            "bind": host,
            "port": str(self.port),
            "dir": str(self._folder),
            "appendonly": "yes",
            "save": '""',
            "repl-diskless-sync-delay": "0",
            **(options or {}),
        }
        if replica_of is not None:
            lines["replicaof"] = f"{replica_of.host} {replica_of.port}"
        self._config = self._folder / "redis.conf"
        self._config.write_text("".join(f"{key} {value}\n" for key, value in lines.items()))
        command = [*prefix, program("redis-server"), str(self._config)]
        self.service = Service(name, command, folder, pause=pause)

    @property
    def url(self) -> str:
        """Its URL for a relay."""
        return f"redis://{self.host}:{self.port}/0"

    @property
    def services(self) -> list[Service]:
        """Its process."""
        return [self.service]

    def current(self) -> RedisServer:
        """Return itself."""
        return self

    def start(self) -> None:
        """Start it, with what its folder holds."""
        self.service.start(self.answers)

    def answers(self) -> bool:
        """Tell whether it answers and has read its files."""
        try:
            return ask(self.host, self.port, "PING") == b"PONG"
        except EngineError as error:
            return str(error).startswith("NOAUTH")
        except OSError:
            return False

    def ask(self, *words: Word) -> Reply:
        """Ask it one thing."""
        return ask(self.host, self.port, *words)

    def forget(self, kept: Path) -> None:
        """Move its files to a folder, so that it comes back empty."""
        (self._folder / "appendonlydir").rename(kept)

    def restore(self, kept: Path) -> None:
        """Put such files in the place of what it has."""
        shutil.rmtree(self._folder / "appendonlydir", ignore_errors=True)
        kept.rename(self._folder / "appendonlydir")


class Sentinel:
    """One of those who watch the primary and agree on the next one."""

    def __init__(
        self, folder: Path, number: int, primary: RedisServer, pause: Pause = time.sleep, lines: str = ""
    ) -> None:
        """Take its place; `lines` are further ones of its configuration."""
        self.port = free_port()
        name = f"sentinel{number}"
        # Sentinel writes what it learns into its own configuration.
        config = folder / f"{name}.conf"
        config.write_text(
            f"port {self.port}\nbind 127.0.0.1\ndir {folder}\n"
            f"sentinel monitor {PRIMARY} {primary.host} {primary.port} 2\n"
            f"sentinel down-after-milliseconds {PRIMARY} {DOWN_AFTER_MS}\n"
            f"sentinel failover-timeout {PRIMARY} 5000\n{lines}"
        )
        command = [program("redis-server"), str(config), "--sentinel"]
        self.service = Service(name, command, folder, pause=pause)

    def start(self) -> None:
        """Start it."""
        self.service.start(self._answers)

    def primary(self) -> tuple[str, int]:
        """Return where it believes the primary to be."""
        reply = ask("127.0.0.1", self.port, "SENTINEL", "GET-MASTER-ADDR-BY-NAME", PRIMARY)
        assert isinstance(reply, list)
        host, port = reply
        assert isinstance(host, bytes)
        assert isinstance(port, bytes)
        return host.decode(), int(port)

    def sees(self, what: str) -> int:
        """Return a figure that it has about the primary, such as `num-slaves`."""
        reply = ask("127.0.0.1", self.port, "SENTINEL", "MASTER", PRIMARY)
        assert isinstance(reply, list)
        value = reply[reply.index(what.encode()) + 1]
        assert isinstance(value, bytes)
        return int(value)

    def _answers(self) -> bool:
        try:
            return self.primary()[1] > 0
        except (OSError, EngineError):
            return False


class Replicated:
    """A primary, two replicas, three Sentinels; `current` is the primary as they see it."""

    def __init__(
        self,
        folder: Path,
        pause: Pause = time.sleep,
        options: Mapping[str, str] | None = None,
        sentinel_lines: str = "",
    ) -> None:
        """Take their places; `options` are those of each Redis.  Raises Problem."""
        first = RedisServer(folder, name="redis1", options=options, pause=pause)
        self.servers = [first]
        for name in ("redis2", "redis3"):
            self.servers.append(
                RedisServer(folder, name=name, replica_of=first, options=options, pause=pause)
            )
        self.sentinels = [Sentinel(folder, number, first, pause, sentinel_lines) for number in (1, 2, 3)]
        self._pause = pause

    @property
    def url(self) -> str:
        """Their URL for a relay."""
        places = ",".join(f"127.0.0.1:{each.port}" for each in self.sentinels)
        return f"redis+sentinel://{places}/{PRIMARY}/0"

    @property
    def services(self) -> list[Service]:
        """Their processes."""
        watching = [each.service for each in self.sentinels]
        return [*watching, *(each.service for each in self.servers)]

    def start(self) -> None:
        """Start all, and wait until a failover would find everybody."""
        for server in self.servers:
            server.start()
        for sentinel in self.sentinels:
            sentinel.start()

        def is_known() -> bool:
            figures = [(each.sees("num-slaves"), each.sees("num-other-sentinels")) for each in self.sentinels]
            return figures == [(2, 2)] * 3

        wait_for(is_known, "the Sentinels know replicas and each other", pause=self._pause)

    def current(self) -> RedisServer:
        """Return the primary."""
        _, port = self.sentinels[0].primary()
        return next(each for each in self.servers if each.port == port)


class EngineError(Exception):
    """A Redis answered with an error."""


def ask(host: str, port: int, *words: Word) -> Reply:
    """Send one command on a connection of its own; return the answer.  Raises EngineError, OSError."""
    decoder, replies = Decoder(), list[Reply]()
    with socket.create_connection((host, port), _ANSWER_S) as sock:
        sock.sendall(encode(words))
        while not replies:
            data = sock.recv(65536)
            if not data:
                raise OSError("the engine hung up")
            replies += decoder.feed(data)
    if isinstance(replies[0], Failure):
        raise EngineError(replies[0].text)
    return replies[0]

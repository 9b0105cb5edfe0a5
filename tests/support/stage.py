"""Puts a server, its surroundings and a replay together: one call plays one transcript.

A `Stage` starts the server that a transcript needs (its environment, its settings), opens the connections the
replay asks for, and owns every server process it started.
"""

from __future__ import annotations

import os
import re
import signal
import socket
from pathlib import Path
from urllib.parse import quote

from tests.support.accounts import account_home, home
from tests.support.differences import Differences
from tests.support.feed import Feed, whole
from tests.support.http_fixture import SERVER, HttpFixture, refused_port
from tests.support.peer import Peer
from tests.support.replay import Replay
from tests.support.scene import Scene
from tests.support.scenes import SCENES
from tests.support.scenes_process import START_ENVIRONMENT
from tests.support.server_process import Flavour, ServerProcess, base_environment

ROOT = Path(__file__).resolve().parents[2]
SHORT_PERIODS: dict[str, object] = {"detached_session_ttl_s": 4.0, "closed_process_retention_s": 4.0}
"""Settings that make our server's waiting times short enough for a test."""


class Stage:
    """The servers of one replay."""

    def __init__(self, flavour: Flavour, name: str, feed: Feed = whole, *, stdio: bool = False) -> None:
        """Start the server for this transcript."""
        self.flavour = flavour
        self.feed = feed
        env = base_environment() | {"HOME": home()}
        if not flavour.is_reference:
            env["CODEX_HOME"] = no_codex_home()
        env.pop("TMPDIR", None)  # there was none when the traffic was recorded
        if name.startswith("03-"):
            env = START_ENVIRONMENT | {"PATH": env["PATH"], "HOME": account_home() or home()}
        settings = SHORT_PERIODS if name.startswith("05-") else {}
        listen = "stdio" if stdio else "ws://127.0.0.1:0"
        self.server = ServerProcess(flavour, listen=listen, env=env, settings=settings, cwd=ROOT)
        self.stdio = stdio
        self.others: list[ServerProcess] = []

    def open(self, conn: str) -> Peer:
        """Open a connection; the one called `stdio` gets a server of its own."""
        if conn == "stdio":
            self.others.append(ServerProcess(self.flavour, listen="stdio", cwd=ROOT))
            return self.others[-1].stdio(self.feed)
        return self.server.stdio(self.feed) if self.stdio else self.server.connect(self.feed)

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the main server."""
        self.server.signal(number)

    def close(self) -> None:
        """End every server."""
        for server in [self.server, *self.others]:
            server.close_stdin()
            server.stop()
            server.release()


def no_codex_home() -> str:
    """Return a folder that is not there, for codex's files: a replay must not meet those of the account."""
    return f"{home()}/.codex-of-no-test"


def scene_of(name: str, tmp: Path, flavour: Flavour, fixture: HttpFixture | None) -> Scene:
    """Build the surroundings of a transcript."""
    scene = SCENES[name.partition(".")[0]](tmp)
    scene.values["SERVER_PATH"] = os.environ["PATH"]
    scene.values["CWD"] = quote(str(ROOT))  # in URIs
    scene.values |= {"CODEX_HOME": quote(no_codex_home()), "HOSTNAME": socket.gethostname()}
    scene.values["PORT_REFUSED"] = str(refused_port())
    if name.startswith("13-"):
        scene.values["PORT"] = scene.values["PORT_REFUSED"]
    if fixture is not None:
        scene.values |= {"HTTP_PORT": str(fixture.port), "PORT": str(fixture.port), "SERVER": SERVER}
    if flavour.is_reference:
        binary = Path(flavour.argv[0])
        scene.values |= {"CODEX_HOME": flavour.env["CODEX_HOME"], "PKG": str(binary.parents[1])}
        scene.normalise = lambda got: re.sub(rb"codex-arg0\w{6}", b"codex-arg0XXXXXX", got)
    return scene


def play(name: str, tmp: Path, flavour: Flavour, feed: Feed = whole, *, stdio: bool = False) -> list[str]:
    """Replay a transcript; return the unexplained differences and the unneeded entries."""
    differences = Differences.none(name) if flavour.is_reference else Differences.of_ours(name)
    fixture = HttpFixture() if name.startswith("07-") else None
    try:
        scene = scene_of(name, tmp, flavour, fixture)
        stage = Stage(flavour, name, feed, stdio=stdio)
        try:
            failures = Replay(name, stage, scene, differences).run()
        finally:
            stage.close()
    finally:
        if fixture is not None:
            fixture.stop()
    return failures + ([] if stdio else differences.unused())

"""A short command loads what it needs and no more: importing is most of what it takes."""

from __future__ import annotations

import subprocess
import sys

from tests.box.boxes import Person
from tests.support.server_process import ServerProcess

NOT_NEEDED = {
    *("websockets.client", "websockets.protocol", "logging", "hashlib", "json", "tomllib", "ssl", "pprint"),
    *("urllib.parse", "gevent.lock", "gevent.queue", "gevent.threadpool", "encodings.idna", "subprocess"),
    *("execserver.protocol.methods", "execserver.protocol.files", "execserver.box.book", "asyncio"),
    *("termios", "execserver.box.terminal"),
}


def test_a_command_over_a_websocket_loads_few_modules(person: Person, server: ServerProcess) -> None:
    done = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "execserver", "run", server.url, "--", "echo", "hello"],
        stdin=subprocess.DEVNULL,
        env=person.environ,
        capture_output=True,
        timeout=30,
        check=True,
    )
    assert done.stdout == b"hello\n"
    loaded = [line.rpartition(b"|")[2].strip().decode() for line in done.stderr.splitlines()]
    assert {"execserver.client.websocket_transport", "gevent"} <= set(loaded)
    assert set(loaded) & NOT_NEEDED == set()
    # While the box starts the command, and not before it is asked to.
    connected = loaded.index("execserver.client.websocket_transport")
    assert connected < loaded.index("execserver.box.conversation")

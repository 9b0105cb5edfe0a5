"""A short command loads what it needs and no more: importing is most of what it takes."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence

import gevent
import pytest

from execserver.box.commands import talking
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
    assert {"execserver.client.carriers.websocket_transport", "gevent"} <= set(loaded)
    assert set(loaded) & NOT_NEEDED == set()
    # While the box starts the command, and not before it is asked to.
    connected = loaded.index("execserver.client.carriers.websocket_transport")
    assert connected < loaded.index("execserver.box.commands.conversation")


class Interrupts:
    """Finds a module as if somebody had pressed ^C at that moment."""

    @staticmethod
    def find_spec(name: str, path: Sequence[str] | None, target: object = None) -> None:
        """Interrupt one import."""
        if name == "execserver.box.commands.conversation":
            raise KeyboardInterrupt


def test_an_interrupt_while_loading_reaches_who_waits(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delitem(sys.modules, "execserver.box.commands.conversation", raising=False)
    monkeypatch.setattr(sys, "meta_path", [Interrupts, *sys.meta_path])
    loading = gevent.spawn(talking._load_conversation)
    with pytest.raises(KeyboardInterrupt):
        gevent.sleep(20)
    loading.join(20)
    assert loading.successful()
    assert capfd.readouterr().err == ""

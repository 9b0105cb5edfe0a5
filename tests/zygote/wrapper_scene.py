"""The end wrappers speak to, with somebody in place of the exec broker."""

from __future__ import annotations

import select
import socket
import subprocess
import time
from collections.abc import Callable
from typing import Any

from execserver.zygote.supervision.event_loop import EventLoop
from execserver.zygote.supervision.trap.callers import Caller, Execution, Means
from execserver.zygote.supervision.wrapper.wrapper_end import (
    WrapperEnd,
)
from tests.helpers.wrapper_process import COMMAND
from tests.support.wrapper_peer import frame

LIMIT_S = 20.0
REQUEST = {"file": "/bin/x", "argv": ["x", "y"], "workdir": "/tmp", "env": {"K": "V"}}


class ExecBroker:
    """Stands for the one that decides: it keeps who arrived, and who is gone."""

    def __init__(self, loop: EventLoop) -> None:
        self.is_full = False
        self.arrived: list[tuple[Caller, Execution]] = []
        self.gone: list[Caller] = []
        self.loop = loop

    def arrive(self, caller: Caller, execution: Execution) -> None:
        """Hold the caller until the test decides."""
        self.arrived.append((caller, execution))
        self.loop.add(caller.alive_fd, lambda: self.end(caller))

    def end(self, caller: Caller) -> None:
        """Note that a caller is gone."""
        self.release(caller)
        caller.gone()
        self.gone.append(caller)

    def release(self, caller: Caller) -> None:
        """Hold it no longer, as before an answer."""
        self.loop.drop(caller.alive_fd)


class Scene:
    """A wrapper end with its loop, and the socket that wrappers inherit."""

    def __init__(self) -> None:
        ours, self.socket = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.loop = EventLoop()
        self.broker = ExecBroker(self.loop)
        self.source = WrapperEnd(socket.socket(fileno=ours.detach()), self.broker, self.loop)  # type: ignore[arg-type]

    def until(self, condition: Callable[[], object]) -> None:
        """Turn the loop until a condition holds."""
        deadline = time.monotonic() + LIMIT_S
        while not condition():
            assert time.monotonic() < deadline
            self.loop.after(0.005, lambda: None)
            self.loop.turn()
            self.source.go_on()

    def settle(self) -> None:
        """Turn the loop until all that was sent has been looked at."""
        for _ in range(20):
            self.loop.after(0, lambda: None)
            self.loop.turn()
            self.source.go_on()

    def connect(self, *more: int, data: bytes = b"\0") -> socket.socket:
        """Shake hands; return the wrapper's end of the stream."""
        ours, theirs = socket.socketpair()
        ours.settimeout(LIMIT_S)
        with theirs:
            socket.send_fds(self.socket, [data], [theirs.fileno(), *more])
        return ours

    def ask(self, stream: socket.socket, request: object = REQUEST) -> tuple[Caller, Execution]:
        """Send a request; return what the desk got."""
        count = len(self.broker.arrived)
        stream.sendall(frame(request))
        self.until(lambda: len(self.broker.arrived) > count)
        return self.broker.arrived[-1]

    def start(self, *argv: str, **options: Any) -> subprocess.Popen[bytes]:
        """Start the real wrapper."""
        env = {"PATH": "/usr/bin:/bin", "CODEX_ESCALATE_SOCKET": str(self.socket.fileno())}
        return subprocess.Popen(
            [*COMMAND, *argv],
            env=env,
            pass_fds=[self.socket.fileno()],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            **options,
        )

    def is_dropped(self, stream: socket.socket) -> bool:
        """Tell whether a stream ends without an answer; its descriptors are then closed as well."""
        self.until(lambda: select.select([stream], [], [], 0)[0])
        try:
            return stream.recv(64) == b""
        except ConnectionResetError:
            return True  # something of what was sent is left unread

    def close(self) -> None:
        """Close everything."""
        self.source.close()
        for caller, _ in self.broker.arrived:
            self.broker.release(caller)
            caller.gone()
        self.socket.close()


def collected(scene: Scene, caller: Caller) -> list[Means | None]:
    """Collect what a program needs; the list is empty until it came."""
    got: list[Means | None] = []
    caller.collect(got.append)
    return got

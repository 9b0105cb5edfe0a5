"""HAProxy with the configuration of `deploy/relay-cluster`, before nodes of this machine."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Mapping
from pathlib import Path

from tools.cluster.service import Pause, Service, accepts, free_port, program, wait_for

CONFIGURATION = Path(__file__).resolve().parents[2] / "deploy" / "relay-cluster" / "haproxy.cfg"
MAX_CONNECTIONS = 4000  # two descriptors each; the hard limit may be low
_ANSWER_S = 5.0


class Balancer:
    """One HAProxy; `nodes` leads from the name of a node to its `HOST:PORT`."""

    def __init__(
        self,
        folder: Path,
        nodes: Mapping[str, str],
        *,
        host: str = "127.0.0.1",
        connections: int = MAX_CONNECTIONS,
        pause: Pause = time.sleep,
    ) -> None:
        """Take its place.  Raises Problem."""
        self.host, self.port = host, free_port(host)
        self._admin = folder / "balancer.sock"
        self._pause = pause
        variables = {
            **os.environ,
            **{f"RELAY_{name.upper()}": place for name, place in nodes.items()},
            "RELAY_BIND": f"{host}:{self.port}",
            "RELAY_ADMIN": f"unix@{self._admin.name}",
            "RELAY_MAXCONN": str(connections),
        }
        command = [program("haproxy"), "-db", "-f", str(CONFIGURATION)]
        self.service = Service("balancer", command, folder, variables, pause, cwd=folder)

    @property
    def url(self) -> str:
        """The URL that executors and harnesses use."""
        return f"http://{self.host}:{self.port}"

    def start(self) -> None:
        """Start it."""
        self.service.start(self._answers)

    def states(self) -> dict[str, str]:
        """Return what it thinks of each node, such as `UP`, `NOLB`, `DOWN 1/1`, `MAINT`."""
        rows = [line.split(",") for line in self.command("show stat").splitlines()]
        names = rows[0]
        status = names.index("status")
        return {row[1]: row[status] for row in rows[1:] if row[0] == "nodes" and row[1] != "BACKEND"}

    def wait_until(self, state: str, *nodes: str) -> None:
        """Wait until it thinks so of these nodes, all without any.  Raises Failed."""

        def is_so() -> bool:
            states = self.states()
            return all(states[name].startswith(state) for name in nodes or states)

        wait_for(is_so, f"the balancer has {state} for {', '.join(nodes) or 'all nodes'}", pause=self._pause)

    def drop(self, node: str) -> None:
        """Take a living node out, with the connections that lead to it."""
        self.command(f"set server nodes/{node} state maint")
        self.command(f"shutdown sessions server nodes/{node}")

    def take_back(self, node: str) -> None:
        """Undo `drop`."""
        self.command(f"set server nodes/{node} state ready")

    def command(self, words: str) -> str:
        """Say something at its admin socket; return the answer."""
        # By the folder's descriptor: the path itself may be longer than the address of a socket.
        folder = os.open(self._admin.parent, os.O_RDONLY | os.O_DIRECTORY)
        try:
            return self._command(f"/proc/self/fd/{folder}/{self._admin.name}", words)
        finally:
            os.close(folder)

    def _answers(self) -> bool:
        try:
            self.command("show info")  # its socket is there before anybody listens
        except OSError:
            return False
        return accepts(self.host, self.port)

    def _command(self, path: str, words: str) -> str:
        with socket.socket(socket.AF_UNIX) as sock:
            sock.settimeout(_ANSWER_S)
            sock.connect(path)
            sock.sendall(f"{words}\n".encode())
            answer = b""
            while piece := sock.recv(65536):
                answer += piece
        return answer.decode()

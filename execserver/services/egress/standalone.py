"""A proxy in a process of its own, for one command of `codex-linux-sandbox --network-rules`.

The arguments are two descriptors: a socket through which the command's sandbox passes what listens in its
network, and a file with the text of the rules.  It serves until the socket ends, and prints a line about what
it refused to stderr, once for each destination.
"""

from __future__ import annotations

import os
import sys

from gevent import socket as gevent_socket

from execserver.egress.machine_rules import Refusals
from execserver.egress.policy import EgressPolicy
from execserver.egress.rules_file import parse_rules
from execserver.sandbox.proxy.routes import HTTP_PORT, SOCKS_PORT
from execserver.services.egress.proxy import EgressProxy
from execserver.services.egress.service import EgressService
from execserver.services.launch.passed_listeners import received
from execserver.settings import Settings
from execserver.zygote.libc import Libc

TYPE_CHECKING = False
if TYPE_CHECKING:
    from execserver.egress.decisions import DecisionRecord


def main() -> int:
    """Serve until the socket ends."""
    Libc().set_undumpable()
    channel, rules = (int(text) for text in sys.argv[-2:])
    with open(rules, "rb") as file:
        machine = parse_rules(file.read().decode()).of("").unasked()
    refusals = Refusals()

    def tell(record: DecisionRecord) -> None:
        line = refusals.line(record)
        if line:
            os.write(2, f"{line}\n".encode())

    proxy = EgressProxy(EgressPolicy((), machine=machine), EgressService(Settings(), {}, None), tell, None)
    proxy.expect(HTTP_PORT, SOCKS_PORT)
    with gevent_socket.socket(gevent_socket.AF_UNIX, gevent_socket.SOCK_STREAM, 0, channel) as sock:
        listeners = received(sock)
        http = listeners.pop(HTTP_PORT, None)
        if http is not None:
            proxy.listen_on(http, listeners.get(SOCKS_PORT))
            proxy.start()
            while sock.recv(1):
                pass
    proxy.close()
    return 0

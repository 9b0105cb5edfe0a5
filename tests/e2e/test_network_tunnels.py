"""As many tunnels at once as a process may have, and one more; and none behind the end of a process."""

from __future__ import annotations

import base64
import errno
import os
import resource
import sys
from pathlib import Path

import pytest

from execserver.services.egress.proxy import MAX_CONNECTIONS
from tests.support.peer import Peer
from tests.support.proxy_settings import proxy_settings
from tests.support.running import run, start, take_where, terminate, write
from tests.support.server_process import ServerProcess
from tests.support.waiting import wait_until

DESCRIPTORS = 16 * 1024  # the process has both ends of each, and the server a quarter of its own for proxies

# Its arguments are how many tunnels it opens, all at once.  It is the server behind the proxy as well.
CLIENT = """
import os, resource, selectors, socket, sys, threading

soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
upstream = socket.create_server(("127.0.0.1", 0), backlog=4096)
place = "127.0.0.1:%d" % upstream.getsockname()[1]

def answer():
    waiting = selectors.DefaultSelector()
    waiting.register(upstream, selectors.EVENT_READ)
    while True:
        for key, _ in waiting.select():
            if key.fileobj is upstream:
                sock = upstream.accept()[0]
                waiting.register(sock, selectors.EVENT_READ)
                sock.sendall(b"k")
            else:  # the tunnel has ended
                waiting.unregister(key.fileobj)
                key.fileobj.close()

threading.Thread(target=answer, daemon=True).start()
host, _, port = os.environ["HTTP_PROXY"].rpartition("//")[2].rpartition(":")

def asked():
    sock = socket.create_connection((host, int(port)))
    sock.sendall(("CONNECT %s HTTP/1.1\\r\\nHost: %s\\r\\n\\r\\n" % (place, place)).encode())
    return sock

def opened(sock):
    data = b""
    while not data.endswith(b"\\r\\n\\r\\nk"):
        more = sock.recv(100)
        assert more, data
        data += more

tunnels = [asked() for _ in range(int(sys.argv[1]))]
for sock in tunnels:
    opened(sock)
waiting = asked()
print("open", flush=True)
sys.stdin.readline()
tunnels.pop().close()
opened(waiting)
print("next", flush=True)
sys.stdin.readline()
for sock in [*tunnels, waiting]:
    sock.close()
print("left", flush=True)
sys.stdin.readline()
"""


@pytest.mark.ours_only("0.142.0 has no network proxy")
def test_a_process_has_its_most_tunnels_at_once_and_another_one_waits_for_a_place(
    server: ServerProcess,
) -> None:
    if resource.getrlimit(resource.RLIMIT_NOFILE)[1] < DESCRIPTORS:
        pytest.skip(f"fewer than {DESCRIPTORS} descriptors are allowed here")
    argv = [sys.executable, "-c", CLIENT, str(MAX_CONNECTIONS)]
    with server.connect() as peer:
        peer.open_session()
        start(peer, "p", argv, pipeStdin=True, networkProxy={"proxy": proxy_settings("127.0.0.1")})
        before = _descriptors(server.pid)
        assert _said(peer) == b"open\n"
        at_most = before + 2 * MAX_CONNECTIONS
        # Before it, tests that went before may have left some that were still to be closed.
        assert not before or 2 * MAX_CONNECTIONS <= _descriptors(server.pid) <= at_most + 8
        write(peer, "p", b"\n", "1")
        assert _said(peer) == b"next\n"
        assert _descriptors(server.pid) <= at_most + 8
        write(peer, "p", b"\n", "2")
        assert _said(peer) == b"left\n"
        wait_until(lambda: _descriptors(server.pid) <= before + 8)
        terminate(peer, "p")


# Its argument is a file for what it finds out behind its parent's end.
LEFT_BEHIND = """
import os, socket, sys
host, _, port = os.environ["HTTP_PROXY"].rpartition("//")[2].rpartition(":")
kept = socket.create_connection((host, int(port)))
if os.fork():
    os._exit(0)
os.setsid()
null = os.open("/dev/null", os.O_RDWR)
for number in (0, 1, 2):
    os.dup2(null, number)
try:
    heard = kept.recv(1)
except ConnectionResetError:
    heard = b""
found = socket.socket().connect_ex((host, int(port)))
with open(sys.argv[1] + ".new", "w") as file:
    file.write("%r %d" % (heard, found))
os.rename(sys.argv[1] + ".new", sys.argv[1])
"""


@pytest.mark.ours_only("0.142.0 has no network proxy")
def test_what_outlives_its_process_loses_the_proxy_with_it(server: ServerProcess, tmp_path: Path) -> None:
    told = tmp_path / "told"
    with server.connect() as peer:
        peer.open_session()
        argv = [sys.executable, "-c", LEFT_BEHIND, str(told)]
        assert run(peer, "p", argv, networkProxy={"proxy": proxy_settings("127.0.0.1")}).exit_code == 0
        wait_until(told.exists)
    assert told.read_text() == f"{b''!r} {errno.ECONNREFUSED}"


def _said(peer: Peer) -> bytes:
    message = take_where(peer, lambda message: message.get("method") == "process/output")
    return base64.b64decode(message["params"]["chunk"])


def _descriptors(pid: int) -> int:
    """Count a server's descriptors; 0 for a user who may not look at them, since it cannot be dumped."""
    try:
        return len(os.listdir(f"/proc/{pid}/fd"))
    except PermissionError:
        return 0

"""A managed network: a process reaches the proxies on loopback that its environment names, nothing else."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Iterator

import pytest

from tests.e2e.sandbox_places import Place
from tests.support.peer import Json
from tests.support.proc import children_of, zygotes_of
from tests.support.running import PATH
from tests.support.sandboxes import context, managed, read_only, special, workspace_write
from tests.support.server_process import ServerProcess
from tests.support.waiting import wait_until

FETCH = (
    "import sys, urllib.request as r; "
    "print(r.urlopen(sys.argv[1] if sys.argv[1:] else 'http://example.invalid/x', timeout=5).read().decode())"
)
ours_only = pytest.mark.ours_only("what the reference does is in docs/compatibility.md")
MANAGED: Json = {"enforceManagedNetwork": True}


@pytest.fixture
def proxy() -> Iterator[int]:
    """The port of a proxy that answers with the first line it was asked."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            while True:
                try:
                    connection, _ = server.accept()
                except OSError:
                    return
                with connection:
                    body = connection.recv(65536).split(b"\r\n")[0]
                    connection.sendall(b"HTTP/1.0 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body))

        thread = threading.Thread(target=serve)
        thread.start()
        yield server.getsockname()[1]
        server.shutdown(socket.SHUT_RDWR)
        thread.join()


POLICIES: list[Json] = [
    {"type": "disabled"},
    managed(special("root", "read")),
    managed(special("root", "read"), special("project_roots", "write"), network="enabled"),
]


@pytest.mark.parametrize("permissions", POLICIES)
def test_a_request_arrives_at_the_hosts_proxy_in_absolute_form(
    place: Place, proxy: int, permissions: Json
) -> None:
    env = {**PATH, "HTTP_PROXY": f"http://127.0.0.1:{proxy}", "http_proxy": f"localhost:{proxy}"}
    found = place.run(["python3", "-c", FETCH], context(permissions, place.ws), env=env, **MANAGED)
    assert (found.stdout, found.exit_code) == (b"GET http://example.invalid/x HTTP/1.1\n", 0)


@ours_only
def test_variables_are_rewritten_and_others_kept(place: Place, proxy: int) -> None:
    env = {
        "PATH": PATH["PATH"],
        "HTTP_PROXY": f"http://user:pw@127.0.0.1:{proxy}/",
        "https_proxy": f"localhost:{proxy}",
        "ALL_PROXY": "http://192.0.2.1:80",
        "NO_PROXY": "x",
    }
    found = place.run(["env"], read_only(place.ws), env=env, **MANAGED)
    inside = dict(line.split("=", 1) for line in found.stdout.decode().splitlines())
    port = inside["https_proxy"].rpartition(":")[2]
    assert inside == {
        **env,
        "HTTP_PROXY": f"http://user:pw@127.0.0.1:{port}/",
        "https_proxy": f"127.0.0.1:{port}",
    }
    assert int(port) != proxy


def test_nothing_else_is_reached(place: Place, proxy: int) -> None:
    script = (
        "import errno, socket\n"
        # Where nobody listens, the port may become the connection's own, which then meets itself.
        "def told(s): return 'ECONNREFUSED' if s.getsockname() == s.getpeername() else s\n"
        f"for where in (('127.0.0.1', {proxy}), ('192.0.2.1', 80)):\n"
        "    try: print(told(socket.create_connection(where, 1)))\n"
        "    except OSError as error: print(errno.errorcode[error.errno])\n"
        "for family in (socket.AF_UNIX, socket.AF_NETLINK, socket.AF_PACKET):\n"
        "    try: print(socket.socket(family, socket.SOCK_RAW))\n"
        "    except OSError as error: print(errno.errorcode[error.errno])\n"
        "a, b = socket.socketpair(); a.send(b'x'); print(b.recv(1))"
    )
    env = {**PATH, "HTTP_PROXY": f"http://127.0.0.1:{proxy}"}
    found = place.run(["python3", "-c", script], read_only(place.ws), env=env, **MANAGED)
    assert found.stdout.decode().split() == [
        *("ECONNREFUSED", "ENETUNREACH"),
        *("EPERM", "EPERM", "EPERM"),
        "b'x'",
    ]


@ours_only
@pytest.mark.parametrize(
    ("env", "why"),
    [
        ({}, "managed proxy mode requires proxy environment variables"),
        (
            {"HTTP_PROXY": "http://192.0.2.1:80"},
            "managed proxy mode requires parseable loopback proxy endpoints",
        ),
    ],
)
@pytest.mark.parametrize("permissions", POLICIES[:2])
def test_without_a_proxy_nothing_runs(place: Place, env: dict[str, str], why: str, permissions: Json) -> None:
    found = place.run("touch ran", context(permissions, place.ws), env={**PATH, **env}, **MANAGED)
    text = f"codex-linux-sandbox: failed to prepare host proxy routing bridge: {why}"
    assert (found.exit_code, found.stderr.decode()) == (101, f"{text}\n")
    assert place.denied()
    assert place.read()["sandboxRefusal"] == text
    assert not (place.ws / "ran").exists()


def test_a_proxy_that_is_not_there_is_a_closed_connection(place: Place) -> None:
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))  # nobody listens, and nobody else gets the port
        env = {**PATH, "HTTP_PROXY": f"http://127.0.0.1:{nobody.getsockname()[1]}"}
        assert place.run(["python3", "-c", FETCH], read_only(place.ws), env=env, **MANAGED).exit_code == 1


@ours_only
def test_the_bridge_ends_with_its_process(place: Place, proxy: int, sandbox_server: ServerProcess) -> None:
    (zygote,) = zygotes_of(sandbox_server.pid)
    before = set(children_of(zygote))
    env = {**PATH, "HTTP_PROXY": f"http://127.0.0.1:{proxy}"}
    name = place.begin("echo ready; exec sleep 600", workspace_write(place.ws), env=env, **MANAGED)
    place.peer.call("process/read", {"processId": name, "waitMs": 10000})
    started = set(children_of(zygote)) - before
    assert len(started) == 2
    place.peer.call("process/terminate", {"processId": name})
    wait_until(lambda: not started & set(children_of(zygote)))
    wait_until(lambda: sorted(os.listdir(place.ws)) == ["f"])

"""The sockets of a sandbox's own network, as a Spawner's start passes them."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import pytest

from execserver.sandbox.plan import FILTER_PROXY_ROUTED, NETWORK_NONE, NETWORK_PROXY
from execserver.sandbox.plan_record import encode_plan
from execserver.sandbox.proxy.routes import HTTP_PORT
from execserver.services.launch import passed_listeners
from execserver.services.launch.passed_listeners import PassedListeners, received
from execserver.services.launch.spawner import Spawner, SpawnSpec
from execserver.zygote.confinement import NATIVE, Confinement, refused
from tests.services.spawning import Running, spawner, spec
from tests.support.roots import plan

PROXIED = plan(network=NETWORK_PROXY, syscall_filter=FILTER_PROXY_ROUTED)
READ_WORD = b"read word < /dev/tcp/127.0.0.1/%d; echo $word" % HTTP_PORT


@pytest.fixture
def own_spawner() -> Iterator[Spawner]:
    with spawner() as made:
        yield made


@contextmanager
def behind(
    by: Spawner, what: SpawnSpec, confinement: Confinement
) -> Iterator[tuple[Running, dict[int, socket.socket]]]:
    """Start a process with one proxy; yield it and the sockets that were passed."""
    env = {**dict(what.env), b"HTTP_PROXY": b"http://127.0.0.1:%d" % HTTP_PORT}
    passed = PassedListeners()
    with ExitStack() as undo:
        undo.callback(passed.close)
        started = what._replace(env=env, confinement=confinement, listeners_fd=passed.fd)
        process = Running(by.spawn(started))
        undo.callback(process.close)
        listeners = passed.take()
        for listener in listeners.values():
            undo.callback(listener.close)
        yield process, listeners


@pytest.mark.parametrize("tty", [False, True])
def test_a_start_passes_what_listens_in_the_network_of_its_process(own_spawner: Spawner, tty: bool) -> None:
    what = spec(b"/bin/bash", b"-c", READ_WORD, tty=tty)
    confinement = Confinement(NATIVE, encode_plan(PROXIED))
    with behind(own_spawner, what, confinement) as (process, listeners):
        assert list(listeners) == [HTTP_PORT]
        assert not listeners[HTTP_PORT].getblocking()
        listeners[HTTP_PORT].setblocking(True)
        connection, _ = listeners[HTTP_PORT].accept()
        with connection:
            connection.sendall(b"word\n")
        assert process.read("pty" if tty else "stdout").strip() == b"word"
        assert process.exit_code() == 0


def test_without_a_network_of_its_own_a_process_passes_nothing(own_spawner: Spawner) -> None:
    for confinement in (Confinement(NATIVE, encode_plan(plan(network=NETWORK_NONE))), refused("no")):
        with behind(own_spawner, spec(b"/bin/true"), confinement) as (process, listeners):
            assert listeners == {}
            process.exit_code()


def test_what_outlived_its_process_has_no_network(own_spawner: Spawner) -> None:
    """The end of the command is the end of all in its sandbox, so nobody is left to use the port."""
    what = spec(b"/bin/bash", b"-c", b"setsid bash -c 'sleep 0.1; %s' & exit 3" % READ_WORD)
    with behind(own_spawner, what, Confinement(NATIVE, encode_plan(PROXIED))) as (process, listeners):
        assert process.read("stdout") == b""
        assert process.exit_code() == 3
        with pytest.raises(BlockingIOError):
            listeners[HTTP_PORT].accept()


def test_a_proxy_variable_is_needed(own_spawner: Spawner) -> None:
    passed = PassedListeners()
    what = spec(b"/bin/true")._replace(
        confinement=Confinement(NATIVE, encode_plan(PROXIED)), listeners_fd=passed.fd
    )
    try:
        with pytest.raises(Exception, match="managed proxy mode requires proxy environment variables"):
            own_spawner.spawn(what)
    finally:
        passed.close()


def test_no_program_inherits_a_socket_that_was_passed() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs, socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(passed_listeners, "SOCKS_PORT", port)
            socket.send_fds(theirs, [b"L"], [listening.fileno()])
            found = received(ours)
    assert list(found) == [port]
    assert not found[port].get_inheritable()
    found[port].close()

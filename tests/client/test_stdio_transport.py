"""A server that is a child of the client: lines both ways, and its end."""

from __future__ import annotations

import os
import signal
import sys

import gevent
import pytest

from execserver.client import ExecServerClient, ProtocolViolation, StartFailed, TransportClosed
from execserver.client.carriers.stdio_transport import StdioTransport
from tests.client.conftest import QUICK
from tests.support.waiting import wait_until

MIB = 1024 * 1024
ECHO = """
import sys
for line in sys.stdin.buffer:
    sys.stdout.buffer.write(line)
    sys.stdout.buffer.flush()
"""


def child(code: str, limit: int = 64 * MIB, patience: float = 5.0) -> StdioTransport:
    """Start a Python program as the server."""
    return StdioTransport([sys.executable, "-S", "-c", code], None, limit, patience)


def is_gone(pid: int) -> bool:
    """Tell whether a child has ended and was reaped."""
    try:
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT | os.WNOHANG)
    except ChildProcessError:
        return True
    return False


def test_messages_are_lines() -> None:
    transport = child(ECHO)
    for message in (b"{}", "ä€😀".encode(), b"x" * 300_000):
        transport.send(message)
        assert transport.receive() == message
    transport.close()
    assert is_gone(transport.pid)


def test_large_messages_do_not_block_others_and_stay_whole() -> None:
    transport = child(ECHO)
    messages = [bytes([65 + number]) * MIB for number in range(8)]
    senders = [gevent.spawn(transport.send, message) for message in messages]
    received = [transport.receive() for _ in messages]
    gevent.joinall(senders)
    assert sorted(filter(None, received)) == messages
    transport.close()


def test_lines_cut_anywhere_and_blank_ones_do_not_matter() -> None:
    transport = child(
        "import sys, time\n"
        "for piece in (b'{\"a\"', b':1}\\n\\n  \\n{', b'}\\n{\"b\":2}\\n'):\n"
        "    sys.stdout.buffer.write(piece)\n    sys.stdout.buffer.flush()\n    time.sleep(0.01)\n"
    )
    assert [transport.receive() for _ in range(4)] == [b'{"a":1}', b"{}", b'{"b":2}', None]
    transport.close()


def test_a_line_beyond_the_limit_is_a_violation() -> None:
    transport = child("print('x' * 2000)", limit=1000)
    with pytest.raises(ProtocolViolation, match="1000"):
        transport.receive()
    transport.close()


def test_a_command_that_cannot_be_started_is_reported() -> None:
    with pytest.raises(StartFailed, match="No such file"):
        StdioTransport(["/no/such/server"], None, MIB)
    with pytest.raises(StartFailed, match="an empty command"):
        StdioTransport([], None, MIB)


@pytest.mark.parametrize(
    ("script", "told"),
    [
        ("exit 3", "/bin/sh ended with status 3 before it answered"),
        ("kill -9 $$", "/bin/sh was killed by SIGKILL before it answered"),
        ("kill -40 $$", "/bin/sh was killed by signal 40 before it answered"),
        ("exec 0<&- 1>&-; sleep 60", "/bin/sh closed its output before it answered"),
    ],
)
def test_a_program_that_is_no_server_is_told(script: str, told: str) -> None:
    with pytest.raises(StartFailed) as raised:
        ExecServerClient.connect_stdio(["/bin/sh", "-c", script])
    assert str(raised.value) == told
    assert "--version" in raised.value.hint


def test_the_child_sees_the_given_environment() -> None:
    transport = StdioTransport(["/bin/sh", "-c", 'echo "$ONLY-$HOME"'], {"ONLY": "this"}, MIB)
    assert transport.receive() == b"this-"
    transport.close()


def test_the_child_has_the_default_signals_and_a_group_of_its_own() -> None:
    script = "cat /proc/$$/stat; grep SigIgn /proc/$$/status"
    transport = StdioTransport(["/bin/sh", "-c", script], None, MIB)
    fields = (transport.receive() or b"").split()
    ignored = int((transport.receive() or b"").split()[1], 16)
    assert fields[0] == fields[4] == b"%d" % transport.pid
    assert not ignored & (1 << signal.SIGPIPE - 1 | 1 << signal.SIGXFSZ - 1)
    transport.close()


def test_sending_to_a_child_that_ended_is_the_end_of_the_connection() -> None:
    transport = child("print('{}')")
    assert [transport.receive(), transport.receive()] == [b"{}", None]
    with pytest.raises(TransportClosed, match="the pipe to the server broke"):
        transport.send(b"x" * MIB)
    transport.close()
    assert is_gone(transport.pid)


def test_closing_asks_the_child_politely_first() -> None:
    transport = child(
        "import signal, sys, time\n"
        "signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))\n"
        "print('ready', flush=True)\ntime.sleep(1000)\n",
        patience=3600,
    )
    assert transport.receive() == b"ready"
    with gevent.Timeout(20):  # a child that was only killed in the end would take an hour
        transport.close()
    assert is_gone(transport.pid)


def test_a_child_that_does_not_listen_is_killed_with_its_group() -> None:
    transport = child(
        "import os, signal, time\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "pid = os.fork()\n"
        "if pid: print(pid, flush=True)\n"
        "time.sleep(1000)\n",
        patience=0.1,
    )
    grandchild = int(transport.receive() or b"0")
    transport.close()
    transport.close()
    assert is_gone(transport.pid)
    wait_until(lambda: not _runs(grandchild))


def _runs(pid: int) -> bool:
    """Tell whether a process that is no child of ours runs; it may stay a zombie for its new parent."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_closing_wakes_the_one_who_receives() -> None:
    transport = child("import time; time.sleep(1000)")

    def receive() -> bool:
        try:
            return transport.receive() is None
        except TransportClosed:
            return True

    receiver = gevent.spawn(receive)
    gevent.sleep(0.01)
    transport.close()
    assert receiver.get(timeout=20)


def test_a_server_that_ends_is_not_resumed() -> None:
    answers = (
        "import json, sys\n"
        "for line in sys.stdin:\n"
        "    message = json.loads(line)\n"
        "    if message['method'] == 'initialize':\n"
        "        print(json.dumps({'id': message['id'], 'result': {'sessionId': 's'}}), flush=True)\n"
        "    elif message['method'] != 'initialized':\n"
        "        break\n"
    )
    with ExecServerClient.connect_stdio([sys.executable, "-S", "-c", answers], QUICK) as client:
        assert client.session_id == "s"
        with pytest.raises(TransportClosed):
            client.call("environment/info")
        with pytest.raises(TransportClosed, match="the server ended the connection"):
            client.call("environment/info")


def test_other_children_of_the_program_are_not_touched() -> None:
    other = os.posix_spawn("/bin/sleep", ["sleep", "1000"], {})
    child(ECHO).close()
    os.kill(other, signal.SIGKILL)
    assert os.waitpid(other, 0)[0] == other

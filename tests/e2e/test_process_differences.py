"""Where processes of ours deliberately behave otherwise than those of the reference."""

from __future__ import annotations

import base64

import pytest

from tests.e2e.conftest import Connect, StartServer
from tests.support.peer import RemoteError
from tests.support.proc import is_over, thread_count
from tests.support.running import (
    PATH,
    Outcome,
    event,
    output_until,
    run,
    start,
    terminate,
)
from tests.support.server_process import ServerProcess
from tests.support.ws_peer import WsPeer

pytestmark = pytest.mark.ours_only("what the reference does is in docs/compatibility.md")

CHUNK = 64 * 1024
MIB = 1024 * 1024
NO_WRITE_ID: list[dict[str, None]] = [{}, {"writeId": None}]


def text(data: bytes) -> str:
    return base64.b64encode(data).decode()


def test_a_chunk_holds_what_one_read_gives(peer: WsPeer) -> None:
    found = run(peer, "p", ["dd", "if=/dev/zero", f"bs={CHUNK}", "count=1", "status=none"])
    assert [len(data) for _, _, data in found.chunks] == [CHUNK]


def test_what_was_written_before_the_exit_precedes_it(peer: WsPeer) -> None:
    for number in range(20):
        found = run(peer, f"p{number}", "printf out; printf err >&2")
        assert (found.stdout, found.stderr) == (b"out", b"err")
        assert (found.exited_seq, found.closed_seq) == (3, 4)


@pytest.mark.parametrize(("tty", "code"), [(False, 137), (True, 1)])
def test_terminate_closes_outputs_that_others_hold_open(peer: WsPeer, tty: bool, code: int) -> None:
    start(peer, "p", "setsid sh -c 'echo $$; exec sleep 100' & wait", tty=tty)
    found = Outcome()
    holder = int(output_until(peer, "p", b"\n", found))
    assert terminate(peer, "p")
    while not found.complete:
        found.take(event(peer, "p"))
    assert found.exit_code == code
    assert not is_over(holder)  # it holds the output open, and yet the output is closed


def test_writes_nobody_reads_delay_no_other_request(peer: WsPeer) -> None:
    start(peer, "p", ["sleep", "100"], pipeStdin=True)
    for number in range(6):
        params = {"processId": "p", "chunk": text(bytes(MIB)), "writeId": str(number)}
        peer.send({"id": 1000 + number, "method": "process/write", "params": params})
    assert peer.call("environment/info")
    waiting = {1000 + number for number in range(6)} - {message["id"] for message in peer.kept}
    assert len(waiting) in (1, 2)  # 4 MiB are queued, and a little more is in the pipe
    assert terminate(peer, "p")
    for late in waiting:
        assert peer.take({"id": late})["error"]["message"] == "failed to write to process stdin"


@pytest.mark.parametrize("member", NO_WRITE_ID)
def test_a_write_without_id_is_written_each_time(peer: WsPeer, member: dict[str, None]) -> None:
    start(peer, "p", ["cat"], pipeStdin=True)
    for _ in range(2):
        params = {"processId": "p", "chunk": text(b"hi\n")} | member
        assert peer.call("process/write", params) == {"status": "accepted"}
    assert output_until(peer, "p", b"hi\nhi\n") == b"hi\nhi\n"


@pytest.mark.parametrize("name", ["winch", "WINCH", "SIGWINCH"])
def test_signals_have_more_names_than_interrupt(peer: WsPeer, name: str) -> None:
    start(peer, "p", ["sh", "-c", "trap 'echo got' WINCH; echo ready; while :; do sleep 0.01; done"])
    output_until(peer, "p", b"ready\n")
    assert peer.call("process/signal", {"processId": "p", "signal": name}) == {}
    assert output_until(peer, "p", b"got\n")


def test_terminals_take_no_threads(start_server: StartServer, connect: Connect) -> None:
    server: ServerProcess = start_server()
    peer = connect(server)
    peer.open_session()
    before = thread_count(server.pid)
    for number in range(30):
        start(peer, f"p{number}", ["cat"], tty=True)
    assert thread_count(server.pid) == before


def test_newer_clients_learn_how_a_process_was_sandboxed(peer: WsPeer) -> None:
    assert start(peer, "p", "exit 3") == {"processId": "p", "sandboxType": "none"}
    params = event(peer, "p")["params"]
    assert params == {"processId": "p", "seq": 1, "exitCode": 3, "sandboxDenied": False}


def test_the_first_contracts_methods_run_a_process(peer: WsPeer) -> None:
    params = {"processId": "p", "argv": ["cat"], "cwd": "/", "env": PATH, "tty": True, "outputBytesCap": 4}
    assert peer.call("command/exec", params) == {
        "processId": "p",
        "running": True,
        "exitCode": None,
        "stdout": None,
        "stderr": None,
    }
    write_params = {"processId": "p", "chunk": text(b"hello\n")}
    assert peer.call("command/exec/write", write_params) == {"accepted": True}
    delta = peer.notification("command/exec/outputDelta")
    assert (delta["processId"], base64.b64decode(delta["chunk"])) == ("p", b"hell")
    assert peer.call("command/exec/terminate", {"processId": "p"}) == {"running": True}
    assert peer.notification("command/exec/exited")["exitCode"] == 1
    with pytest.raises(RemoteError, match="unknown process id nope"):
        peer.call("command/exec/write", {"processId": "nope", "chunk": ""})

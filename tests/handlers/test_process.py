from __future__ import annotations

import os
import signal

import gevent
import pytest

from execserver.access.identity import Identity
from execserver.protocol.errors import InternalError
from tests.handlers.asking import Client, Server
from tests.handlers.processes import FOREIGN, FOREIGN_IS, HERE, b64, sandbox, spec_of, start, started
from tests.support.greenlets import turns
from tests.support.waiting import wait_until

pytestmark = pytest.mark.usefixtures("loop_failures")

# process/start


def test_what_is_asked_is_what_is_started(asking: Client) -> None:
    spec = spec_of(
        asking, argv=["a", "", "ä"], cwd="file:///tmp/%C3%A4", env={"B": "1", "A": "ü"}, arg0="zero"
    )
    assert [bytes(word) for word in spec.argv] == [b"a", b"", "ä".encode()]
    assert dict(spec.env) == {b"B": b"1", b"A": "ü".encode()}
    assert (spec.cwd, spec.arg0, spec.tty, spec.pipe_stdin) == ("/tmp/ä".encode(), b"zero", False, False)


def test_terminals_and_piped_input(asking: Client) -> None:
    assert spec_of(asking, process_id="t", tty=True).tty
    piped = spec_of(asking, process_id="i", pipeStdin=True)
    assert (piped.pipe_stdin, piped.tty, piped.arg0) == (True, False, None)


def test_a_policy_makes_the_environment_of_the_servers(asking: Client) -> None:
    policy = {"inherit": "all", "ignoreDefaultExcludes": False, "exclude": ["HO*"], "set": {"S": "1"}}
    spec = spec_of(asking, envPolicy=policy | {"includeOnly": []}, env={"E": "2"})
    assert dict(spec.env) == {b"PATH": b"/usr/bin:/bin", b"S": b"1", b"E": b"2"}


def test_the_notifications_follow_the_answer(asking: Client) -> None:
    answer = asking.answer(
        "process/start", {"processId": "p", "argv": ["x"], "cwd": HERE, "env": {}, "tty": False}
    )
    (run,) = asking.server.spawner.runs
    run.write("stdout", b"quick")
    run.end()
    assert asking.heard() == []
    answer.then()  # type: ignore[union-attr]
    turns()
    assert [message["method"] for message in asking.heard()] == [
        "process/output",
        "process/exited",
        "process/closed",
    ]


RESTRICTED_PATH = {
    "type": "managed",
    "network": "restricted",
    "file_system": {
        "type": "restricted",
        "entries": [{"path": {"type": "path", "path": FOREIGN}, "access": "read"}],
    },
}
NO_RULES = {"type": "managed", "network": "enabled", "file_system": {"type": "restricted", "entries": []}}
FOREIGN_CONTEXT = {"cwd": "file://h/cwd", "workspaceRoots": ["file://h/r"]}


@pytest.mark.parametrize(
    ("members", "refusal"),
    [
        # The order of transcript 15; `z` runs.
        (
            {"argv": [], "cwd": FOREIGN},
            (-32602, f"cwd URI `{FOREIGN}` is not valid on this exec-server host: {FOREIGN_IS}"),
        ),
        ({"argv": []}, (-32602, "argv must not be empty")),
        ({"argv": [""]}, (-32600, "process z already exists")),
        ({"argv": ["/no/such"]}, (-32600, "process z already exists")),
        (
            {
                "argv": [],
                "cwd": FOREIGN,
                "sandbox": sandbox(permissions=RESTRICTED_PATH, **FOREIGN_CONTEXT),
            },
            (-32602, f"invalid sandbox permission path URI: {FOREIGN_IS}"),
        ),
        (
            {"argv": [], "cwd": FOREIGN, "sandbox": sandbox(**FOREIGN_CONTEXT)},
            (
                -32602,
                "sandbox cwd URI `file://h/cwd` is not valid on this exec-server host: "
                "'file://h/cwd' is invalid on 'linux'",
            ),
        ),
        (
            {"argv": [], "cwd": FOREIGN, "sandbox": sandbox(cwd=HERE, workspaceRoots=["file://h/r"])},
            (
                -32602,
                "sandbox workspace root URI `file://h/r` is not valid on this exec-server host: "
                "'file://h/r' is invalid on 'linux'",
            ),
        ),
        (
            {"argv": [], "cwd": FOREIGN, "sandbox": sandbox(permissions=NO_RULES)},
            (-32602, "argv must not be empty"),
        ),
        (
            {"argv": [], "cwd": FOREIGN, "sandbox": sandbox(cwd=HERE, workspaceRoots=[])},
            (-32602, "argv must not be empty"),
        ),
        ({"sandbox": sandbox(cwd=HERE)}, (-32600, "process z already exists")),
        (
            {"processId": "y", "cwd": FOREIGN, "sandbox": sandbox(cwd=HERE)},
            (
                -32602,
                f"failed to prepare process sandbox: command cwd URI `{FOREIGN}` "
                f"is not valid on this host: {FOREIGN_IS}",
            ),
        ),
    ],
)
def test_checks_are_made_in_their_order(
    asking: Client, members: dict[str, object], refusal: tuple[int, str]
) -> None:
    started(asking, "z")
    params = {"processId": "z", "argv": ["x"], "cwd": HERE, "env": {}, "tty": False}
    assert asking.ask("process/start", **(params | members)) == refusal
    assert len(asking.server.spawner.runs) == 1


def test_a_start_that_fails_leaves_the_id_free(asking: Client) -> None:
    asking.server.spawner.failure = InternalError("No such file or directory (os error 2)")
    assert start(asking) == (-32603, "No such file or directory (os error 2)")
    asking.server.spawner.failure = None
    started(asking)


def test_an_id_stays_taken_after_the_close(asking: Client) -> None:
    started(asking).end()
    assert start(asking) == (-32600, "process p already exists")


# process/read


def test_retained_output_is_read_in_pages(asking: Client) -> None:
    run = started(asking)
    for piece in (b"abc", b"def"):
        run.write("stdout", piece)
    run.write("stderr", b"err")
    whole = asking.ask("process/read", processId="p")
    assert [chunk["chunk"] for chunk in whole["chunks"]] == [b64(b"abc"), b64(b"def"), b64(b"err")]
    assert (whole["nextSeq"], whole["exited"], whole["exitCode"], whole["closed"]) == (4, False, None, False)
    page = asking.ask("process/read", processId="p", afterSeq=1, maxBytes=0)
    assert page["chunks"] == [{"seq": 2, "stream": "stdout", "chunk": b64(b"def")}]
    assert page["nextSeq"] == 3


def test_a_read_that_need_not_wait_is_answered_at_once(asking: Client) -> None:
    run = started(asking)
    assert asking.ask("process/read", processId="p", waitMs=0)["chunks"] == []
    run.write("stdout", b"x")
    assert len(asking.ask("process/read", processId="p", waitMs=60_000)["chunks"]) == 1
    run.end()
    assert asking.ask("process/read", processId="p", afterSeq=3, waitMs=60_000)["closed"] is True


def test_a_waiting_read_is_answered_by_what_comes(asking: Client) -> None:
    run = started(asking)
    reader = asking.ask_later("process/read", processId="p", waitMs=2**64 - 1)
    assert not reader.ready()
    run.write("stdout", b"x")
    assert reader.get(timeout=20)["nextSeq"] == 2
    reader = asking.ask_later("process/read", processId="p", afterSeq=1, waitMs=60_000)
    run.exit(2 << 8)
    result = reader.get(timeout=20)
    assert (result["chunks"], result["exitCode"], result["nextSeq"]) == ([], 2, 3)
    reader = asking.ask_later("process/read", processId="p", afterSeq=2, waitMs=60_000)
    assert not reader.ready()
    run.close()
    assert reader.get(timeout=20)["closed"] is True


def test_a_waiting_read_ends_with_its_time(asking: Client) -> None:
    started(asking)
    assert asking.ask("process/read", processId="p", waitMs=5)["chunks"] == []


def test_a_read_of_an_unknown_process_is_refused(asking: Client) -> None:
    assert asking.ask("process/read", processId="p", waitMs=60_000) == (-32600, "unknown process id p")


# process/signal and process/terminate


@pytest.mark.parametrize(
    ("name", "number"),
    [
        ("interrupt", signal.SIGINT),
        ("HUP", signal.SIGHUP),
        ("INT", signal.SIGINT),
        ("QUIT", signal.SIGQUIT),
        ("TERM", signal.SIGTERM),
        ("KILL", signal.SIGKILL),
        ("USR1", signal.SIGUSR1),
        ("USR2", signal.SIGUSR2),
        ("CONT", signal.SIGCONT),
        ("STOP", signal.SIGSTOP),
        ("WINCH", signal.SIGWINCH),
        ("SIGTERM", signal.SIGTERM),
        ("term", signal.SIGTERM),
    ],
)
def test_signals(asking: Client, name: str, number: int) -> None:
    run = started(asking)
    assert asking.ask("process/signal", processId="p", signal=name) == {}
    assert run.signals == [number]


def test_a_signal_to_nobody_is_fine(asking: Client) -> None:
    assert asking.ask("process/signal", processId="p", signal="interrupt") == {}
    run = started(asking)
    run.end()
    assert asking.ask("process/signal", processId="p", signal="interrupt") == {}
    assert run.signals == []


def test_a_signal_the_system_refuses(asking: Client) -> None:
    started(asking)
    asking.server.spawner.signal_failure = PermissionError(1, "x")
    refusal = (-32603, "failed to signal process: Operation not permitted (os error 1)")
    assert asking.ask("process/signal", processId="p", signal="interrupt") == refusal


def test_terminating(asking: Client) -> None:
    assert asking.ask("process/terminate", processId="p") == {"running": False}
    run = started(asking)
    assert asking.ask("process/terminate", processId="p") == {"running": True}
    assert asking.ask("process/terminate", processId="p") == {"running": True}
    run.exit(9)
    assert asking.ask("process/terminate", processId="p") == {"running": False}
    assert run.signals == [9, 9]


def test_nothing_is_killed_after_the_exit(asking: Client) -> None:
    run = started(asking)
    run.exit()
    assert asking.ask("process/terminate", processId="p") == {"running": False}
    assert run.signals == []


# process/resize and process/list


def test_a_terminal_is_resized(asking: Client) -> None:
    run = started(asking, tty=True)
    assert asking.ask("process/resize", processId="p", rows=50, cols=132) == {}
    assert os.get_terminal_size(run._ends["pty"]) == (132, 50)


def test_what_cannot_be_resized(asking: Client) -> None:
    for rows, cols in ((0, 80), (24, 0)):
        zero = (-32602, "rows and cols must not be 0")
        assert asking.ask("process/resize", processId="p", rows=rows, cols=cols) == zero
    unknown = (-32600, "unknown process id p")
    assert asking.ask("process/resize", processId="p", rows=1, cols=1) == unknown
    run = started(asking)
    no_terminal = (-32600, "process p has no terminal")
    assert asking.ask("process/resize", processId="p", rows=1, cols=1) == no_terminal
    run.end()
    run = started(asking, "t", tty=True)
    run.end()
    wait_until(lambda: asking.call.session.processes.known("t").state.closed, pause=gevent.sleep)
    assert asking.ask("process/resize", processId="t", rows=1, cols=1)[0] == -32600


def test_the_list_names_who_opened_the_session(handlers_server: Server) -> None:
    client = Client(handlers_server, ready=False)
    client.connection.identity = Identity("tls", "devbox")
    client.ask("initialize", clientName="x")
    client.connection.rules.notification("initialized")
    assert client.ask("process/list")["identity"] == {"way": "tls", "name": "devbox"}


def test_the_processes_of_the_session_are_listed(asking: Client) -> None:
    assert asking.ask("process/list") == {"processes": [], "identity": None}
    started(asking, "runs", argv=["sleep", "9"], tty=True)
    started(asking, "done").end(3 << 8)
    runs, done = asking.ask("process/list")["processes"]
    assert (runs["processId"], runs["argv"], runs["tty"], runs["running"]) == (
        "runs",
        ["sleep", "9"],
        True,
        True,
    )
    assert (done["processId"], done["pid"], done["running"], done["exitCode"]) == ("done", None, False, 3)

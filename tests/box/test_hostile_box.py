"""What a person's client makes of a box that lies: a clear end, soon, and nothing that a terminal obeys."""

from __future__ import annotations

import json
import sys
from importlib import import_module
from pathlib import Path

import gevent
import pytest

from execserver.box import connecting
from execserver.box.commands import logs, watching
from execserver.client import ExecServerClient
from execserver.client.rules.event_log import Output
from execserver.dispatch import VERBS
from tests.box.boxes import Person
from tests.box.liar import EVIL, Answer, Asked, Liar, is_harmless, visit

ESCAPED = r"\x1b]0;owned\x07\x1b[2J\x0a../../etc/passwd\u202e"
PROCESS = {
    "sessionId": "s",
    "processId": "abcdef",
    "processName": "job",
    "argv": [EVIL],
    "tty": False,
    "running": True,
    "startedAtMs": 0,
    "watchers": 0,
}


class Visit:
    """Runs verbs in this process."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
        self._monkeypatch = monkeypatch
        self._capfd = capfd
        monkeypatch.setattr(watching, "_LEAVE_S", 0.05)

    def __call__(self, liar: Liar, *words: str) -> tuple[int, str, str]:
        """Return the exit status and both texts."""
        self._monkeypatch.setenv("EXECSERVER_BOX", liar.url)
        self._monkeypatch.setattr(sys, "argv", ["execserver", *words[1:]])
        module, _, function = VERBS[words[0]].partition(":")
        status = getattr(import_module(module), function)()
        gevent.sleep(0)  # sockets are closed by the event loop, which goes no further when a verb has ended
        found = self._capfd.readouterr()
        assert is_harmless(found.out + found.err)
        return status, found.out, found.err


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], tmp_path: Path) -> Visit:
    """Verbs in an empty folder."""
    monkeypatch.chdir(tmp_path)
    return Visit(monkeypatch, capfd)


@pytest.fixture
def hasty(run: Visit, monkeypatch: pytest.MonkeyPatch) -> Visit:
    """The same for boxes that do not answer, and are given up at once."""
    monkeypatch.setattr(connecting, "_ANSWER_S", 0.05)
    return run


def refuse(asked: Asked) -> None:
    asked.refuse(EVIL)


def show_processes(asked: Asked) -> None:
    asked.result({"processes": [PROCESS]})


def show_sessions(asked: Asked) -> None:
    asked.result({"sessions": []})


def show_watch(asked: Asked) -> None:
    found = {"processId": asked.params["watchId"], "argv": [], "tty": False, "running": True}
    asked.result({**found, "nextSeq": 1, "writer": True})


def begin(asked: Asked) -> None:
    asked.result({"processId": asked.params["processId"]})


def introduce_trees(asked: Asked) -> None:
    info = {"shell": {"name": "sh", "path": "/bin/sh"}, "execserver": {"fsMany": True}}
    asked.result({"sessionId": "s", "environmentInfo": info})


JOB = ("attach", "logs", "wait", "kill")
EVERY = [
    ["run", "--", "x"],
    ["run", "-d", "--", "x"],
    ["ps"],
    *([verb, "job"] for verb in JOB),
    ["cp", ":x", "back"],
    ["cp", ":x", "-"],
    ["cp", "-", ":x"],
    ["forward", "-R", "0:localhost:1"],
]


def test_a_box_that_never_answers_is_given_up(hasty: Visit) -> None:
    with Liar() as liar:
        for words in EVERY:
            status, _, err = hasty(liar, *words)
            assert (status, "did not answer within" in err) == (255, True), words


def test_a_box_that_stops_answering_in_a_copy_is_given_up(
    run: Visit, monkeypatch: pytest.MonkeyPatch
) -> None:
    from execserver.box.transfer import copies

    monkeypatch.setattr(copies, "PATIENCE_S", 0.2)
    where = {"fs_canonicalize": lambda asked: asked.refuse("no such file", -32004)}
    Path("file").write_bytes(b"content")
    for answers, words in (
        ({}, ["cp", "file", ":x"]),
        (where, ["cp", "file", ":x"]),
        (where, ["cp", ":x", "back"]),
        (where, ["sync", "file", ":x"]),
    ):
        with Liar(initialize=introduce_trees, **answers) as liar:
            status, _, err = run(liar, *words)
            assert (status, "within" in err) == (255, True), (words, err)


def test_a_box_that_shows_a_command_and_nothing_more_is_given_up(hasty: Visit) -> None:
    with Liar(session_processes=show_processes) as liar:
        for verb in JOB:
            status, _, err = hasty(liar, verb, "job")
            assert (status, "did not answer within" in err) == (255, True), (verb, err)
    with Liar(session_processes=show_processes, session_list=show_sessions, process_watch=show_watch) as liar:
        status, _, err = hasty(liar, "logs", "job")
        assert (status, "did not answer within" in err) == (255, True)


def test_errors_are_shown_and_not_obeyed(run: Visit) -> None:
    answers = dict.fromkeys(("process_start", "session_processes", "port_listen"), refuse)
    with Liar(**answers) as liar:
        for words in EVERY:
            status, out, err = run(liar, *words)
            assert (status in (126, 255), out, ESCAPED in err) == (True, "", True), words


def test_names_are_shown_and_not_obeyed(run: Visit) -> None:
    most = 2**64 - 1
    odd = {
        **PROCESS,
        **dict.fromkeys(("processName", "processId", "sessionName"), EVIL),
        **dict.fromkeys(("startedAtMs", "cpuTimeMs", "rssBytes", "pid"), most),
    }
    with Liar(session_processes=lambda asked: asked.result({"processes": [odd]})) as liar:
        status, out, _ = run(liar, "ps")
        assert (status, out.count("\n"), ESCAPED in out) == (0, 2, True)
        status, out, _ = run(liar, "ps", "--json")
        assert (status, json.loads(out)[0]["name"]) == (0, EVIL)


@pytest.mark.parametrize(
    "introduce",
    [
        lambda asked: asked.result(None),
        lambda asked: asked.result({"sessionId": 5}),
        lambda asked: asked.say(EVIL),
        lambda asked: asked.say(b"\0\xff"),
        lambda asked: asked.say('{"id":1,"result":' + "[" * 100_000),
        lambda asked: asked.say("x" * 20_000_000),
        lambda asked: asked.hang_up(),
        refuse,
    ],
    ids=["null", "wrong type", "no JSON", "no text", "deep", "huge", "end", "error"],
)
def test_a_box_that_does_not_speak_the_contract_is_unreachable(introduce: Answer, run: Visit) -> None:
    with Liar(initialize=introduce) as liar:
        status, out, err = run(liar, "ps")
    assert (status, out, err[:7]) == (255, "", "Error: ")


def test_homes_that_are_none_lead_nowhere(run: Visit) -> None:
    def introduce(asked: Asked) -> None:
        info = {"shell": {"name": "x", "path": EVIL}, "userHomeDir": "file:///C:/x%2F..", "cwd": "file://h/x"}
        asked.result({"sessionId": "s", "environmentInfo": info})

    with Liar(initialize=introduce, process_start=refuse) as liar:
        status, _, err = run(liar, "run", "--cwd", "below", "--", "x")
    assert (status, "its home is file:///C:/x%2F.." in err) == (255, True)


def test_a_log_without_end_ends_where_it_is_empty(run: Visit) -> None:
    def page(asked: Asked) -> None:
        after = asked.params.get("afterSeq") or 0
        state = {"nextSeq": after + 2, "oldestSeq": 0, "lostBytes": 0, "exited": False, "closed": False}
        asked.result({"chunks": [], **state})

    def read(asked: Asked) -> None:
        state = {"nextSeq": 2**63, "exited": False, "exitCode": None, "closed": False, "failure": None}
        asked.result({"chunks": [], **state, "sandboxDenied": False})

    answers = {"process_watch": show_watch, "process_read": read, "process_log": page}
    with Liar(session_processes=show_processes, **answers) as liar:
        assert run(liar, "logs", "job")[:2] == (0, "")
        assert liar.asked.count("process/log") == 1


@pytest.mark.long
def test_pieces_without_content_count_for_a_tail() -> None:
    pieces = (Output(seq, "stdout", b"") for seq in range(300_000))
    assert len(logs.last_lines(pieces, 3)) < 270_000


def test_a_command_that_closes_without_an_exit_has_an_unknown_one(run: Visit) -> None:
    def close(asked: Asked) -> None:
        begin(asked)
        asked.push("process/closed", processId=asked.params["processId"], seq=1)

    with Liar(process_start=close) as liar:
        assert run(liar, "cp", ":x", "-")[0] == 1
        status, _, err = run(liar, "run", "--", "x")
        assert (status, "the box does not know how" in err) == (255, True)


def flood(asked: Asked) -> None:
    begin(asked)
    for seq in range(1, 40):
        asked.output(seq, b"x" * 16_384)


def test_a_copy_to_a_box_stops_when_that_floods(run: Visit) -> None:
    with Liar(process_start=flood) as liar:
        Path("file").write_bytes(b"content")
        for source in ("-", "file"):
            status, _, err = run(liar, "cp", source, ":x")
            assert (status, "what nobody asked for" in err) == (255, True), err


def test_a_flood_is_the_reason_also_where_the_writer_notices_the_end_first(
    run: Visit, monkeypatch: pytest.MonkeyPatch
) -> None:
    detach = ExecServerClient.detach

    def detach_and_wait(client: ExecServerClient) -> None:
        detach(client)
        gevent.idle()  # until the other greenlet has nothing more to do

    monkeypatch.setattr(ExecServerClient, "detach", detach_and_wait)
    with Liar(process_start=flood) as liar:
        status, _, err = run(liar, "cp", "-", ":x")
    assert (status, "what nobody asked for" in err) == (255, True), err


@pytest.mark.parametrize("name", ["../x", "/etc/x", EVIL, "y/../x", "other"])
def test_an_archive_leads_nowhere_else(name: str, run: Visit, tmp_path: Path) -> None:
    from execserver.box.trees import tar

    def send(asked: Asked) -> None:
        begin(asked)
        entry = tar.Entry(name.encode(), tar.FILE, 4, 0o644, 0)
        asked.output(1, tar.header(entry) + b"evil" + bytes(508) + tar.END)
        asked.end(2)

    with Liar(process_start=send) as liar:
        status, _, err = run(liar, "cp", ":x", str(tmp_path / "back"))
    assert (status, "which nobody asked for" in err) == (1, True)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.long
@pytest.mark.timeout(180)
def test_huge_answers_cost_bounded_memory(person: Person) -> None:
    def many(asked: Asked) -> None:
        words = '["a"' + ',"a"' * 15_000_000 + "]"
        process = json.dumps({**PROCESS, "argv": 0}).replace('"argv": 0', f'"argv":{words}')
        asked.say(f'{{"id":{asked.call_id},"result":{{"processes":[{process}]}}}}')

    def flood(asked: Asked) -> None:
        begin(asked)
        for seq in range(1, 2000):
            asked.output(seq * 2, b"x" * 1_000_000)  # each second one is missing: all the others wait

    with Liar(session_processes=many, process_start=flood) as liar:
        status, _, err = visit(person, "ps", liar.url)
        assert (status, "exceeds limit" in err or "message too big" in err) == (255, True)
        assert liar.asked.count("session/processes") == 3  # it is not asked for the same again and again
        status, _, err = visit(person, "cp", "--box", liar.url, ":x", "back", within=120)
        assert (status, "the copy is not whole" in err) == (255, True)


def test_what_a_box_does_not_offer_starts_nothing(run: Visit) -> None:
    with Liar() as liar:
        for words in (["--limit", "time=5s"], ["--record", "output"]):
            status, _, err = run(liar, "run", *words, "--", "x")
            assert (status, err.startswith("Error: cannot run x in ")) == (126, True), err


def test_the_cure_for_a_limit_is_an_option_for_a_person(run: Visit) -> None:
    def cure(asked: Asked) -> None:
        asked.refuse('no (cure: that, or take what there is, with "enforce": "best")', -32600)

    with Liar(process_start=cure) as liar:
        status, _, err = run(liar, "run", "--", "x")
    assert (status, "take what there is, with --limit enforce=best)" in err) == (126, True), err

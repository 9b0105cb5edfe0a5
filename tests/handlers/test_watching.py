"""Kept sessions and watched processes through the handlers, by several clients and peers."""

from __future__ import annotations

from typing import Any

import pytest

from execserver.access.identity import NOBODY, Grant, Identity
from execserver.access.tokens.holder import Holder
from tests.handlers.asking import Client, Server
from tests.handlers.processes import ACCEPTED, b64, start, started, write
from tests.support.greenlets import turns

ADA, EVE = Identity("jwt", "ada"), Identity("jwt", "eve")


def client_of(server: Server, identity: Identity = NOBODY, **members: object) -> Client:
    """Connect as a peer, with more members of `initialize`."""
    client = Client(server, ready=False)
    client.connection.identity = identity
    answer = client.ask("initialize", clientName="t", **members)
    assert isinstance(answer, dict), answer
    client.connection.rules.notification("initialized")
    return client


def refused(server: Server, identity: Identity = NOBODY, **members: object) -> Any:
    client = Client(server, ready=False)
    client.connection.identity = identity
    answer = client.ask("initialize", clientName="t", **members)
    assert not isinstance(answer, dict), answer
    return answer


def session_id(client: Client) -> str:
    return client.call.session.session_id


def names_seen(client: Client) -> set[str | None]:
    return {one["name"] for one in client.ask("session/list")["sessions"]}


def watch(client: Client, owner: Client, process_id: str = "p", **members: object) -> Any:
    params = {"sessionId": session_id(owner), "processId": process_id, "watchId": "w"} | members
    return client.ask("process/watch", **params)


def heard(client: Client, method: str) -> list[dict[str, Any]]:
    turns()
    return [note["params"] for note in client.heard() if note["method"] == method]


class TestKept:
    def test_a_client_that_asks_for_nothing_notices_nothing(self, handlers_server: Server) -> None:
        client = Client(handlers_server, ready=False)
        assert list(client.ask("initialize", clientName="t")) == ["sessionId", "environmentInfo"]

    def test_a_time_and_a_name_are_granted_and_told(self, handlers_server: Server) -> None:
        client = Client(handlers_server, ready=False)
        answer = client.ask("initialize", clientName="t", keepMs=3_600_000, sessionName="work")
        assert answer["kept"] == {"keepMs": 3_600_000, "name": "work"}
        client.connection.rules.notification("initialized")
        assert client.ask("session/keep", keepMs=10**15) == {"keepMs": 86_400_000, "name": "work"}
        assert client.ask("session/keep", keepMs=1, name="play") == {"keepMs": 30_000, "name": "play"}

    def test_a_session_is_resumed_by_its_name(self, handlers_server: Server) -> None:
        first = client_of(handlers_server, keepMs=60_000, sessionName="work")
        started(first)
        assert refused(handlers_server, resumeSessionName="work")[0] == -32010
        first.leave()
        again = client_of(handlers_server, resumeSessionName="work")
        assert session_id(again) == session_id(first)
        assert again.call.session.processes.find("p") is not None
        assert again.ask("session/list")["sessions"][0]["keepMs"] == 60_000

    def test_mistakes_are_told_and_leave_nothing_behind(self, handlers_server: Server) -> None:
        client_of(handlers_server, sessionName="work")
        before = len(handlers_server.sessions)
        text = "sessionName must be 1 to 64 letters, digits, dots, dashes or underscores"
        for name in ("", "-x", ".x", "a b", "ä", "x" * 65, "a\n"):
            assert refused(handlers_server, sessionName=name) == (-32602, text)
        assert refused(handlers_server, sessionName="work") == (-32600, "session name work is already in use")
        assert refused(handlers_server, resumeSessionName="no") == (-32600, "unknown session name no")
        both = refused(handlers_server, resumeSessionName="work", resumeSessionId="x")
        assert both == (-32602, "resumeSessionId and resumeSessionName exclude each other")
        turns()
        assert len(handlers_server.sessions) == before

    def test_others_see_neither_sessions_nor_processes(self, handlers_server: Server) -> None:
        ada = client_of(handlers_server, ADA, sessionName="work")
        started(ada)
        for other in (NOBODY, EVE, Identity("jwt", "ada", Grant(read_only=True))):
            client = client_of(handlers_server, other)
            assert names_seen(client) == {None}
            assert client.ask("session/processes") == {"processes": []}
            assert refused(handlers_server, other, resumeSessionName="work")[0] == -32600
            assert watch(client, ada) == (-32600, "unknown process id p")
            assert client.ask("session/end", sessionId=session_id(ada)) == {"ended": False}
            client_of(handlers_server, other, sessionName="work")  # a name is a peer's own
        assert names_seen(client_of(handlers_server, ADA)) == {None, "work"}

    def test_the_sessions_of_clients_of_the_contract_are_nobodys_to_see(
        self, handlers_server: Server
    ) -> None:
        plain = Client(handlers_server)
        started(plain)
        other = Client(handlers_server)
        assert len(other.ask("session/list")["sessions"]) == 1
        assert watch(other, plain) == (-32600, "unknown process id p")
        assert other.ask("session/end", sessionId=session_id(plain)) == {"ended": False}

    def test_there_are_so_many_and_no_more(self, handlers_server: Server) -> None:
        for number in range(1024):
            client_of(handlers_server, sessionName=f"s{number}").leave()
        assert refused(handlers_server, keepMs=60_000) == (-32600, "at most 1024 sessions are kept")
        client = Client(handlers_server)
        ended = client.ask("session/list")["sessions"][1]["sessionId"]
        assert client.ask("session/end", sessionId=ended) == {"ended": True}
        client_of(handlers_server, keepMs=60_000)

    def test_a_session_ends_with_its_connection_if_that_is_wanted(self, handlers_server: Server) -> None:
        client = client_of(handlers_server, sessionName="work")
        run = started(client)
        assert client.ask("session/keep", keepMs=0) == {"keepMs": 0, "name": "work"}
        client.leave()
        turns()
        assert (run.signals, len(handlers_server.sessions)) == ([9], 0)

    def test_the_session_of_a_token_that_is_over_is_not_kept(self, handlers_server: Server) -> None:
        reason: list[str] = []
        holder = Holder("t", Grant(), lambda _: reason[0] if reason else None)
        client = client_of(handlers_server, holder, keepMs=3_600_000)
        reason.append("the token is revoked")
        client.leave()
        assert client.call.session.record.keep_s is None
        reason.clear()
        gone = client_of(handlers_server, holder, keepMs=3_600_000)
        gone.leave()
        reason.append("the token is revoked")  # while nobody is connected
        handlers_server.sessions.kept._look()
        turns()
        assert handlers_server.sessions.kept.terms(gone.call.session) is None

    def test_a_session_does_not_end_under_the_hands_of_who_watches(self, handlers_server: Server) -> None:
        owner, other = client_of(handlers_server, keepMs=3_600_000), client_of(handlers_server)
        run = started(owner)
        watch(other, owner)
        owner.leave()
        record = owner.call.session.record
        self.be_due(handlers_server, owner)
        assert record.expires_at > 0
        record.expires_at = 1.0
        other.ask("process/unwatch", processId="w")
        assert record.expires_at > 1.0  # begun anew
        watch(other, owner)
        record.expires_at = 1.0
        other.leave()
        assert record.expires_at > 1.0
        assert run.signals == []
        self.be_due(handlers_server, owner)  # the other one is not connected any more
        assert run.signals == [9]

    def test_who_watches_what_has_ended_holds_no_session(self, handlers_server: Server) -> None:
        owner, other = client_of(handlers_server, keepMs=3_600_000), client_of(handlers_server)
        run = started(owner)
        watch(other, owner)
        run.end()
        owner.leave()
        self.be_due(handlers_server, owner)
        assert handlers_server.sessions.find(session_id(owner)) is None

    def test_a_token_that_is_over_ends_a_session_that_others_watch(self, handlers_server: Server) -> None:
        reason: list[str] = []
        holder = Holder("t", Grant(), lambda _: reason[0] if reason else None)
        owner, other = (client_of(handlers_server, holder, keepMs=3_600_000) for _ in range(2))
        started(owner)
        watch(other, owner)
        owner.leave()
        reason.append("the token is revoked")
        handlers_server.sessions.kept._look()
        assert handlers_server.sessions.find(session_id(owner)) is None

    @staticmethod
    def be_due(server: Server, client: Client) -> None:
        """Let the time of a detached session be over."""
        client.call.session.record.expires_at = 0.0
        server.sessions._expire()
        turns()

    def test_ended_processes_stay_with_a_kept_session(self, handlers_server: Server) -> None:
        client = client_of(handlers_server, keepMs=3_600_000)
        for number in range(34):
            run = started(client, f"p{number}")
            run.end()
        found = [entry["processId"] for entry in client.ask("process/list")["processes"]]
        assert found == [f"p{number}" for number in range(2, 34)]


class TestNames:
    def test_a_process_has_a_name_that_is_unique_while_it_runs(self, handlers_server: Server) -> None:
        client = client_of(handlers_server, sessionName="work")
        run = started(client, "a", processName="build")
        other = client_of(handlers_server)
        assert start(other, "b", processName="build") == (-32600, "process name build is already in use")
        (entry,) = other.ask("session/processes")["processes"]
        assert (entry["processName"], entry["sessionName"], entry["running"]) == ("build", "work", True)
        run.end()
        started(other, "b", processName="build")
        assert start(other, "c", processName="-")[0] == -32602

    def test_a_failed_start_frees_the_name(self, handlers_server: Server) -> None:
        client = client_of(handlers_server)
        started(client, "a")
        assert start(client, "a", processName="n") == (-32600, "process a already exists")
        started(client, "b", processName="n")


class TestWatching:
    def test_any_number_follow_and_all_hear_the_same(self, handlers_server: Server) -> None:
        owner = client_of(handlers_server, sessionName="work")
        run = started(owner)
        run.write("stdout", b"before")
        watchers = [client_of(handlers_server) for _ in range(5)]
        for each in watchers:
            found = watch(each, owner, afterSeq=0)
            assert (found["processId"], found["running"], found["writer"]) == ("w", True, False)
        run.write("stderr", b"after")
        run.end()
        for each in watchers:
            notes = [
                (note["method"], note["params"].get("seq"), note["params"]["processId"])
                for note in each.heard()
            ]
            assert notes == [
                ("process/output", 1, "w"),
                ("process/output", 2, "w"),
                ("process/exited", 3, "w"),
                ("process/closed", 4, "w"),
            ]
            assert len(each.ask("process/read", processId="w", afterSeq=0)["chunks"]) == 2

    def test_a_slow_watcher_delays_nobody_and_hears_of_its_gap(self, handlers_server: Server) -> None:
        owner = client_of(handlers_server, sessionName="work")
        run = started(owner)
        slow = client_of(handlers_server)
        watch(slow, owner, afterSeq=0)
        slow.sink.fill()
        for _ in range(40):
            run.write("stdout", b"x" * 60_000)
        assert len(heard(owner, "process/output")) == 40  # two MiB, of which one is retained
        assert heard(slow, "process/output") == []
        slow.sink.read()
        (gap,) = heard(slow, "process/gap")
        told = heard(slow, "process/output")
        assert (gap["processId"], gap["firstSeq"], gap["lastSeq"]) == ("w", 1, told[0]["seq"] - 1)
        assert gap["lostBytes"] == 60_000 * gap["lastSeq"]
        assert [note["seq"] for note in told] == list(range(gap["lastSeq"] + 1, 41))

    def test_one_writes(self, handlers_server: Server) -> None:
        owner = client_of(handlers_server, sessionName="work")
        run = started(owner, tty=True)
        other = client_of(handlers_server)
        watch(other, owner)
        refusal = (-32600, "another session writes to process w; take it first")
        assert write(other, b"no", process_id="w") == refusal
        assert other.ask("process/resize", processId="w", rows=5, cols=5) == refusal
        assert other.ask("process/closeStdin", processId="w") == refusal
        assert other.ask("process/take", processId="w") == {"writer": True}
        assert heard(owner, "process/taken") == [{"processId": "p", "writer": False}]
        assert heard(other, "process/taken") == [{"processId": "w", "writer": True}]
        assert write(other, b"yes\n", process_id="w") == ACCEPTED
        assert run.read("pty") == b"yes\n"
        assert write(owner, b"no", "2")[0] == -32600
        assert other.ask("process/resize", processId="w", rows=5, cols=7) == {}
        (entry,) = owner.ask("session/processes")["processes"]
        assert (entry["rows"], entry["cols"], entry["watchers"]) == (5, 7, 1)
        assert other.ask("process/unwatch", processId="w") == {}
        assert heard(owner, "process/taken")[-1] == {"processId": "p", "writer": True}
        assert write(owner, b"again\n") == ACCEPTED  # under the id that the other client has used
        assert run.read("pty") == b"again\n"

    def test_signals_are_free_to_all_that_follow(self, handlers_server: Server) -> None:
        owner = client_of(handlers_server, sessionName="work")
        run = started(owner)
        other = client_of(handlers_server)
        watch(other, owner)
        assert other.ask("process/signal", processId="w", signal="term") == {}
        assert other.ask("process/terminate", processId="w") == {"running": True}
        assert run.signals == [15, 9]

    def test_a_watch_goes_on_over_a_lost_connection(self, handlers_server: Server) -> None:
        owner = client_of(handlers_server, sessionName="work")
        run = started(owner)
        other = client_of(handlers_server)
        watch(other, owner)
        other.leave()
        run.write("stdout", b"meanwhile")
        again = client_of(handlers_server, resumeSessionId=session_id(other))
        run.write("stdout", b"now")
        assert [note["chunk"] for note in heard(again, "process/output")] == [b64(b"now")]
        chunks = again.ask("process/read", processId="w", afterSeq=0)["chunks"]
        assert [chunk["chunk"] for chunk in chunks] == [b64(b"meanwhile"), b64(b"now")]

    def test_the_end_of_the_session_ends_the_watch(self, handlers_server: Server) -> None:
        owner = client_of(handlers_server, sessionName="work")
        started(owner, pipeStdin=True)
        other = client_of(handlers_server)
        assert watch(other, owner, take=True)["writer"]
        other.ask("session/keep", keepMs=0)
        other.leave()
        turns()
        assert owner.ask("session/processes")["processes"][0]["watchers"] == 0
        assert write(owner, b"mine again") == ACCEPTED

    def test_a_forgotten_process_frees_the_id_and_tells_its_end(self, handlers_server: Server) -> None:
        owner = client_of(handlers_server, sessionName="work")
        run = started(owner)
        other = client_of(handlers_server)
        watch(other, owner)
        owner.ask("session/keep", keepMs=0)
        owner.leave()
        turns()
        run.end()
        assert len(heard(other, "process/closed")) == 1
        assert other.ask("process/read", processId="w") == (-32600, "unknown process id w")
        started(other, "w")

    def test_ids_and_numbers_are_bounded(self, handlers_server: Server) -> None:
        owner = client_of(handlers_server, sessionName="work")
        for number in range(2):
            started(owner, f"p{number}")
        other = client_of(handlers_server)
        started(other, "mine")
        taken = watch(other, owner, "p0", watchId="mine")
        assert taken == (-32600, "process mine already exists")
        for number in range(64):
            assert isinstance(watch(other, owner, "p0", watchId=f"w{number}"), dict)
        assert watch(other, owner, "p1", watchId="x") == (-32600, "at most 64 watches in a session")
        full = watch(client_of(handlers_server), owner, "p0")
        assert full == (-32600, "at most 64 watchers follow a process")
        assert start(other, "w1") == (-32600, "process w1 already exists")


@pytest.mark.parametrize("method", ["process/unwatch", "process/take"])
def test_unknown_ids(asking: Client, method: str) -> None:
    answer = asking.ask(method, processId="no")
    assert answer == ({} if method == "process/unwatch" else (-32600, "unknown process id no"))

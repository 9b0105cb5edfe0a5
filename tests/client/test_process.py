"""A remote process over the fake server: events, input, catching up after a loss."""

from __future__ import annotations

from typing import Any

import gevent
import pytest

from execserver.client import (
    Closed,
    ExecServerClient,
    Exited,
    InvalidPath,
    InvalidRequestError,
    Output,
    OutputGap,
    OutputTooLarge,
    RemoteProcess,
    StdinUnavailable,
    TransportClosed,
    UnsupportedByServer,
    WaitTimeout,
)
from tests.client.conftest import QUICK
from tests.client.fake_server import (
    SESSION,
    FakeServer,
    Refusal,
    Unanswered,
    drop,
    end,
    output,
    read_answer,
    say,
)

MIB = 1024 * 1024
SANDBOX: dict[str, object] = {"permissions": {}, "windowsSandboxLevel": "disabled"}


class TestStart:
    def test_the_request_holds_every_member_of_the_contract(
        self, client: ExecServerClient, fake: FakeServer
    ) -> None:
        client.start(["a", "b c"], cwd="/tmp/ä b", env={"X": "1"}, tty=True, arg0="z", process_id="id")
        assert fake.asked("process/start")[0].params == {
            "processId": "id",
            "metadata": None,
            "argv": ["a", "b c"],
            "cwd": "file:///tmp/%C3%A4%20b",
            "envPolicy": None,
            "shellSnapshot": None,
            "env": {"X": "1"},
            "tty": True,
            "pipeStdin": False,
            "arg0": "z",
            "sandbox": None,
            "enforceManagedNetwork": False,
            "managedNetwork": None,
            "networkProxy": None,
        }

    def test_without_env_the_servers_environment_is_inherited(
        self, client: ExecServerClient, fake: FakeServer
    ) -> None:
        client.start(["a"])
        params = fake.asked("process/start")[0].params
        assert params["env"] == {}
        assert params["envPolicy"] == {
            "inherit": "all",
            "ignoreDefaultExcludes": True,
            "exclude": [],
            "set": {},
            "includeOnly": [],
        }

    def test_process_ids_are_made_up_and_differ(self, client: ExecServerClient) -> None:
        assert client.start(["a"]).process_id != client.start(["a"]).process_id

    def test_a_relative_cwd_is_refused_here(self, client: ExecServerClient) -> None:
        with pytest.raises(InvalidPath, match="'here'"):
            client.start(["a"], cwd="here")

    def test_a_refused_start_is_an_error_and_leaves_an_earlier_process_alone(
        self, client: ExecServerClient, process: RemoteProcess, fake: FakeServer
    ) -> None:
        def refuse(params: object) -> object:
            raise Refusal(-32600, "process p already exists")

        fake.answers["process/start"] = refuse
        with pytest.raises(InvalidRequestError, match="already exists"):
            client.start(["a"], process_id="p")
        say(fake, 1, b"x")
        assert process.next_event(20) == Output(1, "stdout", b"x")
        assert fake.asked("process/terminate") == []

    def test_notifications_may_overtake_the_answer(self, client: ExecServerClient, fake: FakeServer) -> None:
        def overtaken(params: dict[str, Any]) -> object:
            say(fake, 1, b"x")
            end(fake, 2)
            return {"processId": "p"}

        fake.answers["process/start"] = overtaken
        process = client.start(["a"], process_id="p")
        assert list(process) == [Output(1, "stdout", b"x"), Exited(2, 0), Closed(3)]

    def test_a_process_whose_start_got_lost_is_killed_after_the_resume(
        self, client: ExecServerClient, fake: FakeServer
    ) -> None:
        def lose(params: object) -> object:
            fake.current.drop()
            raise Unanswered

        fake.answers["process/start"] = lose
        with pytest.raises(TransportClosed):
            client.start(["a"], process_id="p")
        killed = fake.wait_for("process/terminate")
        assert (killed.connection, killed.params) == (1, {"processId": "p"})

    def test_a_start_given_up_is_killed_before_the_connection_ends(
        self, client: ExecServerClient, fake: FakeServer
    ) -> None:
        def never(params: object) -> object:
            raise Unanswered

        fake.answers["process/start"] = never
        starting = gevent.spawn(client.start, ["a"], process_id="p")
        fake.wait_for("process/start")
        starting.kill()
        client.close()
        assert [request.params for request in fake.asked("process/terminate")] == [{"processId": "p"}]


class TestEvents:
    def test_events_are_ordered_by_seq(self, process: RemoteProcess, fake: FakeServer) -> None:
        end(fake, 3)
        say(fake, 2, b"b")
        say(fake, 2, b"b")
        say(fake, 1, b"a")
        assert list(process) == [
            Output(1, "stdout", b"a"),
            Output(2, "stdout", b"b"),
            Exited(3, 0),
            Closed(4),
        ]
        assert process.next_event() is None
        assert process.finished

    def test_notifications_of_others_do_not_matter(self, process: RemoteProcess, fake: FakeServer) -> None:
        fake.current.push("process/output", **output("unknown", 1, b"z"))
        fake.current.push("some/newNotification", x=1)
        say(fake, 1, b"a")
        assert process.next_event(20) == Output(1, "stdout", b"a")

    def test_waiting_for_an_event_can_be_limited(self, process: RemoteProcess) -> None:
        with pytest.raises(WaitTimeout):
            process.next_event(0.01)

    def test_wait_returns_the_code_and_takes_no_events(
        self, process: RemoteProcess, fake: FakeServer
    ) -> None:
        with pytest.raises(WaitTimeout):
            process.wait(0.01)
        assert not process.finished
        say(fake, 1, b"a")
        end(fake, 2, 7)
        assert process.wait(20) == 7
        assert process.exit_code == 7
        assert process.next_event() == Output(1, "stdout", b"a")

    def test_several_greenlets_share_the_events(self, process: RemoteProcess, fake: FakeServer) -> None:
        takers = [gevent.spawn(list, process) for _ in range(3)]
        waiter = gevent.spawn(process.wait)
        gevent.sleep(0)
        for seq in range(1, 20):
            say(fake, seq, b"x")
        end(fake, 20, 1)
        taken = sorted(event.seq for taker in takers for event in taker.get(timeout=20))
        assert taken == list(range(1, 22))
        assert waiter.get(timeout=20) == 1

    def test_a_denial_is_told_where_the_notification_says_so(
        self, client: ExecServerClient, fake: FakeServer
    ) -> None:
        process = client.start(["a"], process_id="p", sandbox=SANDBOX)
        fake.current.push("process/exited", processId="p", seq=1, exitCode=1, sandboxDenied=True)
        process.wait(20)
        assert process.sandbox_denied()
        assert fake.asked("process/read") == []

    def test_a_denial_is_asked_for_where_it_does_not(
        self, client: ExecServerClient, fake: FakeServer
    ) -> None:
        fake.answers["process/read"] = lambda params: {
            **read_answer([], 2, exit_code=1),
            "sandboxDenied": True,
        }
        process = client.start(["a"], process_id="p", sandbox=SANDBOX)
        fake.current.push("process/exited", processId="p", seq=1, exitCode=1)
        process.wait(20)
        assert process.sandbox_denied()
        assert process.sandbox_denied()
        assert len(fake.asked("process/read")) == 1

    def test_without_a_sandbox_nothing_is_asked(self, process: RemoteProcess, fake: FakeServer) -> None:
        end(fake, 1, 1)
        process.wait(20)
        assert not process.sandbox_denied()
        assert fake.asked("process/read") == []


class TestRead:
    def test_reading_goes_on_where_the_last_answer_ended(
        self, process: RemoteProcess, fake: FakeServer
    ) -> None:
        fake.answers["process/read"] = lambda params: read_answer(
            [(params["afterSeq"] + 1, b"x")], params["afterSeq"] + 2
        )
        seqs = [process.read(max_bytes=1, wait=0.5).chunks[0].seq for _ in range(3)]
        assert seqs == [1, 2, 3]
        assert fake.asked("process/read")[2].params == {
            "processId": "p",
            "afterSeq": 2,
            "maxBytes": 1,
            "waitMs": 500,
        }

    def test_a_lost_answer_loses_no_output(self, process: RemoteProcess, fake: FakeServer) -> None:
        def lose_the_first(params: dict[str, Any]) -> object:
            if len(fake.asked("process/read")) == 1:
                fake.current.drop()
                raise Unanswered
            return read_answer([(1, b"once")], 2)

        fake.answers["process/read"] = lose_the_first
        assert process.read().chunks == (Output(1, "stdout", b"once"),)
        mine = [request for request in fake.asked("process/read") if request.params["afterSeq"] == 0]
        assert {request.connection for request in mine} == {0, 1}

    def test_an_explicit_position_does_not_move_the_own_one(
        self, process: RemoteProcess, fake: FakeServer
    ) -> None:
        fake.answers["process/read"] = lambda params: read_answer([], 50)
        process.read(after_seq=7)
        process.read()
        assert [request.params["afterSeq"] for request in fake.asked("process/read")] == [7, 0]


class TestInput:
    def test_every_write_has_an_id_of_its_own(self, process: RemoteProcess, fake: FakeServer) -> None:
        fake.answers["process/write"] = lambda params: {"status": "accepted"}
        process.write(b"a")
        process.write(b"")
        first, second = fake.asked("process/write")
        assert (first.params["chunk"], second.params["chunk"]) == ("YQ==", "")
        assert first.params["writeId"] != second.params["writeId"]

    def test_large_input_goes_in_pieces_in_order(self, process: RemoteProcess, fake: FakeServer) -> None:
        fake.answers["process/write"] = lambda params: {"status": "accepted"}
        process.write(b"a" * MIB + b"b" * 10)
        assert [len(request.params["chunk"]) for request in fake.asked("process/write")] == [1_398_104, 16]

    def test_a_write_whose_answer_got_lost_is_sent_again_under_its_id(
        self, process: RemoteProcess, fake: FakeServer
    ) -> None:
        def lose_the_first(params: object) -> object:
            if len(fake.asked("process/write")) == 1:
                fake.current.drop()
                raise Unanswered
            return {"status": "accepted"}

        fake.answers["process/write"] = lose_the_first
        process.write(b"a")
        first, second = fake.asked("process/write")
        assert (first.connection, second.connection) == (0, 1)
        assert first.params == second.params

    @pytest.mark.parametrize("status", ["stdinClosed", "unknownProcess", "starting"])
    def test_input_that_is_not_accepted_is_an_error(
        self, process: RemoteProcess, fake: FakeServer, status: str
    ) -> None:
        fake.answers["process/write"] = lambda params: {"status": status}
        with pytest.raises(StdinUnavailable, match=status):
            process.write(b"a")

    def test_control_requests_are_the_contracts(self, process: RemoteProcess, fake: FakeServer) -> None:
        fake.answers["process/signal"] = lambda params: {}
        process.signal("interrupt")
        assert process.terminate()
        assert fake.asked("process/signal")[0].params == {"processId": "p", "signal": "interrupt"}

    def test_what_the_server_does_not_have_is_not_sent(
        self, process: RemoteProcess, fake: FakeServer
    ) -> None:
        with pytest.raises(UnsupportedByServer, match="process/resize"):
            process.resize(10, 20)
        with pytest.raises(UnsupportedByServer, match="process/closeStdin"):
            process.close_stdin()
        with pytest.raises(UnsupportedByServer, match="process/closeStdin"):
            process.communicate(b"input")
        assert fake.asked("process/write") == []


class TestCommunicate:
    def test_streams_are_collected_apart(self, process: RemoteProcess, fake: FakeServer) -> None:
        say(fake, 1, b"a")
        fake.current.push("process/output", **output("p", 2, b"E", "stderr"))
        say(fake, 3, b"b")
        end(fake, 4, 3)
        done = process.communicate(timeout=20)
        assert (done.exit_code, done.stdout, done.stderr, done.gaps) == (3, b"ab", b"E", ())

    def test_input_is_written_and_closed(self, fake: FakeServer) -> None:
        fake.answers["initialize"] = lambda params: {
            "sessionId": SESSION,
            "environmentInfo": {
                "shell": {"name": "sh", "path": "/bin/sh"},
                "execserver": {"processCloseStdin": True},
            },
        }
        fake.answers["process/write"] = lambda params: {"status": "accepted"}

        def close(params: object) -> object:
            end(fake, 1)
            return {"status": "accepted"}

        fake.answers["process/closeStdin"] = close
        with ExecServerClient(fake.open_transport, QUICK) as client:
            process = client.start(["cat"], process_id="p", pipe_stdin=True)
            assert process.communicate(b"in", timeout=20).exit_code == 0
        assert fake.asked("process/write")[0].params["chunk"] == "aW4="

    def test_too_much_output_is_an_error_not_memory(self, process: RemoteProcess, fake: FakeServer) -> None:
        say(fake, 1, b"x" * 100)
        with pytest.raises(OutputTooLarge):
            process.communicate(timeout=20, max_output=99)

    def test_a_gap_is_an_error_unless_allowed(self, client: ExecServerClient, fake: FakeServer) -> None:
        fake.answers["process/read"] = lambda params: read_answer([(5, b"z")], 8, exit_code=0, closed=True)
        for number, allowed in enumerate((False, True)):
            process = client.start(["a"], process_id="p")
            drop(fake)
            if allowed:
                done = process.communicate(timeout=20, allow_gaps=True)
                assert done.stdout == b"z"
                assert [(gap.first_seq, gap.last_seq) for gap in done.gaps] == [(1, 4)]
            else:
                with pytest.raises(OutputGap):
                    process.communicate(timeout=20)
            assert client.resumptions == number + 1


class TestUnreadOutput:
    """The bound on what nobody has taken yet; sizes are small here."""

    OPTIONS = QUICK.replace(max_unread_bytes=10_000, max_unread_bytes_while_waiting=50_000)

    def test_the_client_stops_reading_and_loses_nothing(self, fake: FakeServer) -> None:
        client = ExecServerClient(fake.open_transport, self.OPTIONS)
        process = client.start(["a"], process_id="p")
        for seq in range(1, 101):
            say(fake, seq, b"x" * 1000)
        end(fake, 101)
        gevent.sleep(0.05)
        assert process.last_seq < 20
        assert [event.seq for event in process] == list(range(1, 103))
        client.close()

    def test_a_call_is_answered_although_nobody_reads_and_the_loss_is_told(self, fake: FakeServer) -> None:
        client = ExecServerClient(fake.open_transport, self.OPTIONS)
        process = client.start(["a"], process_id="p")
        for seq in range(1, 101):
            say(fake, seq, b"x" * 1000)
        fake.answers["m"] = lambda params: "answered"
        assert client.call("m") == "answered"
        end(fake, 101)
        assert process.wait(20) == 0
        with pytest.raises(OutputGap) as caught:
            process.next_event(20)
        assert caught.value.first_seq == 1
        assert caught.value.lost_bytes == caught.value.last_seq * 1000
        rest = [event.seq for event in process]
        assert rest == list(range(caught.value.last_seq + 1, 103))
        client.close()

    def test_output_that_is_not_collected_holds_nobody_back(self, fake: FakeServer) -> None:
        client = ExecServerClient(fake.open_transport, self.OPTIONS)
        process = client.start(["a"], process_id="p", collect_output=False)
        for seq in range(1, 101):
            say(fake, seq, b"x" * 1000)
        end(fake, 101)
        assert list(process) == [Exited(101, 0), Closed(102)]
        client.close()

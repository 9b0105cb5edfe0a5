"""What a shell call leaves in the server: nothing, however it ends."""

from __future__ import annotations

import gevent
import pytest
from gevent.event import Event

from execserver.egress.rules_file import parse_rules
from execserver.mcp.elicitation import Answer, HostQuestion, Question
from execserver.mcp.tool import ToolError
from tests.conftest import LONG
from tests.mcp.calling import Calls, Person, allow, prompt
from tests.support.lives import assert_freed

LIVES = 1000 if LONG else 20


def test_a_call_that_ends_by_itself(calls: Calls) -> None:
    def life(number: int) -> None:
        assert calls.run("echo text; true", allow("true")).output == "text\n"
        assert calls.run("exit 3").exit_code == 3

    assert_freed(life, LIVES)


@pytest.mark.parametrize("answer", [Answer.ACCEPT, Answer.DECLINE, Answer.FAILED])
def test_a_call_with_questions(calls: Calls, answer: Answer) -> None:
    def life(number: int) -> None:
        calls.run("/bin/true; /bin/true", prompt("true"), ask=Person(answer).ask)

    assert_freed(life, LIVES)


def test_a_call_that_takes_too_long(calls: Calls) -> None:
    def life(number: int) -> None:
        with pytest.raises(ToolError, match="timed out"):
            calls.run("sleep 60", timeout_ms=1)

    assert_freed(life, LIVES)


def test_a_call_that_is_cancelled_while_it_asks(calls: Calls) -> None:
    def life(number: int) -> None:
        cancelled = Event()

        def never(question: Question | HostQuestion) -> Answer:
            cancelled.set()
            Event().wait()
            raise AssertionError

        with pytest.raises(ToolError, match="cancelled"):
            calls.run("/bin/true", prompt("true"), ask=never, cancelled=cancelled)

    assert_freed(life, LIVES)


def test_a_call_with_rules_for_the_network(calls: Calls) -> None:
    rules = parse_rules("")
    request = "GET http://other.example/ HTTP/1.1\\r\\nHost: other.example\\r\\n\\r\\n"
    script = f"exec 3<>/dev/tcp/127.0.0.1/61001; printf '{request}' >&3; read line <&3; echo $line"

    def life(number: int) -> None:
        done = calls.run(script, policy={"type": "danger-full-access"}, network_rules=rules)
        assert "403 Forbidden" in done.output

    assert_freed(life, LIVES)


def test_a_call_whose_greenlet_is_killed(calls: Calls) -> None:
    def life(number: int) -> None:
        asked = Event()

        def note(question: Question | HostQuestion) -> Answer:
            asked.set()
            Event().wait()
            raise AssertionError

        call = gevent.spawn(calls.run, "/bin/true", prompt("true"), ask=note)
        asked.wait()
        call.kill()

    assert_freed(life, LIVES)

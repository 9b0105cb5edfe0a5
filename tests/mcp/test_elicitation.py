"""Questions: what the client gets, who gets the answer, and what becomes of those nobody answers."""

from __future__ import annotations

import json
from typing import cast

import gevent
import pytest

from execserver.mcp import elicitation
from execserver.mcp.elicitation import Answer, CallPrompts, Prompts, Question, message_of
from tests.support.greenlets import turns

JsonObject = dict[str, object]


class Client:
    """Keeps what it is sent, and asks in greenlets."""

    def __init__(self) -> None:
        self.sent: list[JsonObject] = []
        self.prompts = Prompts(lambda message: self.sent.append(json.loads(message)))

    def call(self) -> CallPrompts:
        return CallPrompts(self.prompts)

    def ask(self, call: CallPrompts, *arguments: str) -> gevent.Greenlet[..., Answer]:
        greenlet = gevent.spawn(call.ask, Question("/bin/true", ["true", *arguments], "/w"))
        turns(1)
        return greenlet

    @property
    def asked(self) -> list[object]:
        return [message["id"] for message in self.sent if "id" in message]

    @property
    def withdrawn(self) -> list[object]:
        return [
            cast(JsonObject, message["params"])["requestId"]
            for message in self.sent
            if message["method"] == "notifications/cancelled"
        ]


def test_a_question_is_sent_as_recorded() -> None:
    client = Client()
    waiting = client.ask(client.call(), "a b", "$x")
    assert client.sent == [
        {
            "jsonrpc": "2.0",
            "id": 0,
            "method": "elicitation/create",
            "params": {
                "_meta": {"progressToken": 0},
                "message": "Allow agent to run `/bin/true 'a b' '$x'` in `/w`?",
                "requestedSchema": {
                    "type": "object",
                    "title": "Execution Permission Request",
                    "properties": {
                        "reason": {
                            "type": "string",
                            "description": "Optional reason for allowing or denying execution",
                        }
                    },
                },
            },
        }
    ]
    client.prompts.answered(0, Answer.ACCEPT)
    assert waiting.get(timeout=20) is Answer.ACCEPT
    assert client.withdrawn == []


def test_bytes_that_are_no_text_are_shown_as_what_they_are() -> None:
    question = Question("/bin/\udcff", ["\udcff", "\udc80"], "/\udcfe")
    assert message_of(question) == r"Allow agent to run `$'/bin/\377' $'\200'` in `$'/\376'`?"
    assert message_of(Question("/bin/ls", [], "/")) == "Allow agent to run `/bin/ls` in `/`?"


def test_a_command_cannot_end_the_quotes_of_a_question() -> None:
    forged = "/safe`?\nAllow agent to run `/bin/true"
    shown = r"$'/safe\140?\nAllow agent to run \140/bin/true'"
    assert message_of(Question(forged, ["true", forged], forged)) == (
        f"Allow agent to run `{shown} {shown}` in `{shown}`?"
    )
    assert message_of(Question("/bin/a b", ["a b"], "/c d")) == "Allow agent to run `'/bin/a b'` in `'/c d'`?"


def test_a_name_that_is_not_the_files_is_shown() -> None:
    def shown(name: str) -> str:
        return message_of(Question("/usr/bin/pgrep", [name, "-f", "x"], "/")).partition("x`")[2]

    assert [shown(name) for name in ("pgrep", "./pgrep", "/usr/bin/pgrep")] == [" in `/`?"] * 3
    assert shown("pkill") == " under the name `pkill` in `/`?"
    assert shown("-pgrep") == " under the name `-pgrep` in `/`?"
    assert shown("") == " in `/`?"
    assert shown("\n`") == r" under the name `$'\n\140'` in `/`?"


def test_numbers_go_on_over_calls_and_answers_find_their_question() -> None:
    client = Client()
    first, second = client.call(), client.call()
    waiting = [client.ask(first), client.ask(second), client.ask(first)]
    assert client.asked == [0, 1, 2]
    for number, answer in ((2, Answer.CANCEL), (0, Answer.DECLINE), (1, Answer.FAILED)):
        client.prompts.answered(number, answer)
    assert [each.get(timeout=20) for each in waiting] == [Answer.DECLINE, Answer.FAILED, Answer.CANCEL]


def test_an_answer_that_nobody_waits_for_is_dropped() -> None:
    client = Client()
    waiting = client.ask(client.call())
    for key in (1, "0", -1, 0.5):
        client.prompts.answered(key, Answer.ACCEPT)
    assert not waiting.ready()
    client.prompts.answered(0, Answer.DECLINE)
    client.prompts.answered(0, Answer.ACCEPT)
    assert waiting.get(timeout=20) is Answer.DECLINE


def test_the_questions_of_a_call_that_ends_are_withdrawn() -> None:
    client = Client()
    call, other = client.call(), client.call()
    waiting = [client.ask(call), client.ask(other), client.ask(call)]
    call.close()
    assert [waiting[0].get(timeout=20), waiting[2].get(timeout=20)] == [Answer.FAILED, Answer.FAILED]
    assert client.withdrawn == [0, 2]
    assert not waiting[1].ready()
    assert client.ask(call).get(timeout=20) is Answer.FAILED
    assert client.asked == [0, 1, 2]
    other.close()


def test_a_killed_asker_withdraws_its_question() -> None:
    client = Client()
    waiting = client.ask(client.call())
    waiting.kill()
    assert client.withdrawn == [0]


def test_when_the_client_is_gone_every_question_fails_and_nothing_is_sent() -> None:
    client = Client()
    call = client.call()
    waiting = [client.ask(call), client.ask(call)]
    client.prompts.close()
    assert [each.get(timeout=20) for each in waiting] == [Answer.FAILED, Answer.FAILED]
    call.close()
    assert client.ask(client.call()).get(timeout=20) is Answer.FAILED
    assert (client.asked, client.withdrawn) == ([0, 1], [])


def test_at_the_bound_questions_wait_in_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(elicitation, "MAX_OPEN", 2)
    client = Client()
    call = client.call()
    waiting = [client.ask(call, str(number)) for number in range(5)]
    assert client.asked == [0, 1]
    client.prompts.answered(0, Answer.ACCEPT)
    turns(1)
    assert client.asked == [0, 1, 2]
    waiting[3].kill()  # in line: the client never hears of it
    waiting[1].kill()  # open: the next one takes its place
    turns(1)
    assert client.withdrawn == [1]
    assert client.asked == [0, 1, 2, 3]
    assert "`/bin/true 4`" in str(client.sent[-1])
    call.close()
    assert client.withdrawn == [1, 2, 3]


@pytest.mark.parametrize("way", ["close", "kill"])
def test_questions_that_leave_together_let_none_of_them_in(monkeypatch: pytest.MonkeyPatch, way: str) -> None:
    monkeypatch.setattr(elicitation, "MAX_OPEN", 2)
    client = Client()
    call, other = client.call(), client.call()
    waiting = [client.ask(call, str(number)) for number in range(5)]
    last = client.ask(other)
    if way == "close":
        call.close()
    else:
        gevent.killall(waiting)
    turns()
    assert (client.asked, client.withdrawn) == ([0, 1, 2], [0, 1])
    client.prompts.answered(2, Answer.ACCEPT)
    assert last.get(timeout=20) is Answer.ACCEPT


def test_at_the_bound_of_the_line_a_question_fails_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(elicitation, "MAX_OPEN", 1)
    monkeypatch.setattr(elicitation, "MAX_IN_LINE", 2)
    client = Client()
    call = client.call()
    waiting = [client.ask(call) for _ in range(3)]
    assert client.ask(call).get(timeout=20) is Answer.FAILED
    call.close()
    assert all(each.get(timeout=20) is Answer.FAILED for each in waiting)

"""The conversation: what may come first, what answers what, and which state counts for which call."""

from __future__ import annotations

import json
from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from execserver.mcp.elicitation import Answer
from execserver.mcp.session import (
    STATE_BYTES,
    Answered,
    CancelCall,
    Send,
    Session,
    StartCall,
    Step,
    WrongStart,
)
from execserver.mcp.tool import ExecParams
from execserver.protocol.permissions import DISABLED, MANAGED

JsonObject = dict[str, object]

INITIALIZE = {
    "protocolVersion": "2025-06-18",
    "capabilities": {"elicitation": {}},
    "clientInfo": {"name": "probe", "version": "0"},
}
FULL_ACCESS: JsonObject = {"sandboxPolicy": {"type": "danger-full-access"}, "sandboxCwd": "/"}
UPDATE = "codex/sandbox-state/update"
META = "codex/sandbox-state-meta"


def line(method: str, params: object = None, number: object = None) -> bytes:
    message: JsonObject = {"jsonrpc": "2.0", "method": method}
    if number is not None:
        message["id"] = number
    if params is not None:
        message["params"] = params
    return json.dumps(message).encode()


def answer(step: Step | None) -> JsonObject:
    """Return the decoded message of a step that sends one."""
    assert isinstance(step, Send)
    return cast(JsonObject, json.loads(step.message))


def ask(session: Session, method: str, params: object = None, number: object = 2) -> JsonObject:
    """Return the result or the error of a request."""
    found = answer(session.handle(line(method, params, number)))
    assert found["id"] == number
    return cast(JsonObject, found.get("result", found.get("error")))


def call(session: Session, arguments: object, **more: object) -> Step | None:
    return session.handle(line("tools/call", {"name": "shell", "arguments": arguments, **more}, 9))


def started(session: Session, **more: object) -> StartCall:
    step = call(session, {"command": "true", "workdir": "/"}, **more)
    assert isinstance(step, StartCall)
    return step


def opened() -> Session:
    session = Session("1.2.3")
    ask(session, "initialize", INITIALIZE, 1)
    assert session.handle(line("notifications/initialized")) is None
    return session


def test_the_greeting_says_what_the_server_is() -> None:
    assert ask(Session("1.2.3"), "initialize", INITIALIZE, "one") == {
        "protocolVersion": "2025-06-18",
        "capabilities": {
            "experimental": {"codex/sandbox-state": {"version": "1.0.0"}, "codex/sandbox-state-meta": {}},
            "tools": {},
        },
        "serverInfo": {"name": "codex-exec-mcp-server", "version": "1.2.3"},
        "instructions": "This server provides a tool to execute shell commands and return their output.",
    }


@pytest.mark.parametrize(
    ("wanted", "given"),
    [
        ("1999-01-01", "1999-01-01"),
        ("2025-03-26", "2025-03-26"),
        ("2025-06-18", "2025-06-18"),
        ("2025-11-25", "2025-06-18"),
        ("2099-01-01", "2025-06-18"),
        ("garbage", "2025-06-18"),
        ("", ""),
    ],
)
def test_an_older_protocol_version_is_echoed_and_a_newer_one_is_not(wanted: str, given: str) -> None:
    assert (
        ask(Session("1"), "initialize", {**INITIALIZE, "protocolVersion": wanted})["protocolVersion"] == given
    )


@pytest.mark.parametrize(
    "first",
    [
        line("tools/list", number=1),
        line("ping", number=1),
        line("notifications/initialized"),
        line("initialize", INITIALIZE),
        line("initialize", number=1),
        line("initialize", {}, 1),
        b'{"jsonrpc":"2.0","id":1,"result":{}}',
    ],
)
def test_any_other_first_message_ends_the_conversation(first: bytes) -> None:
    step = Session("1").handle(first)
    assert step == WrongStart(f"expect initialized request, but received: {first.decode()}")


@pytest.mark.parametrize(
    "second", [line("ping", number=2), line("notifications/cancelled", {"requestId": 1})]
)
def test_any_other_second_message_ends_the_conversation(second: bytes) -> None:
    session = Session("1")
    ask(session, "initialize", INITIALIZE)
    step = session.handle(second)
    assert step == WrongStart(f"expect initialized notification, but received: {second.decode()}")


def test_a_long_wrong_message_is_cut_in_the_text() -> None:
    step = Session("1").handle(line("tools/list", {"x": "a" * 1000}, 1))
    assert isinstance(step, WrongStart)
    assert len(step.reason) < 300


def test_the_end_of_the_input_is_a_good_end_only_once_open() -> None:
    session = Session("1")
    assert session.ended() == WrongStart("connection closed: initialized request")
    ask(session, "initialize", INITIALIZE)
    assert session.ended() == WrongStart("connection closed: initialize notification")
    session.handle(line("notifications/initialized"))
    assert session.ended() is None


def test_broken_lines_are_answered_and_change_nothing() -> None:
    session = Session("1")
    for broken in (b"not json", b"[]", b"\xff"):
        assert answer(session.handle(broken))["id"] is None
    ask(session, "initialize", INITIALIZE)
    assert cast(JsonObject, answer(session.handle(b"{"))["error"])["code"] == -32700
    assert session.handle(line("notifications/initialized")) is None
    assert ask(session, "ping") == {}


def test_plain_requests_have_plain_answers() -> None:
    session = opened()
    assert ask(session, "ping") == {}
    assert ask(session, "resources/list") == {"resources": []}
    assert ask(session, "resources/templates/list") == {"resourceTemplates": []}
    assert ask(session, "prompts/list", {"cursor": "x"}) == {"prompts": []}
    assert ask(session, "completion/complete", {}) == {"completion": {"values": []}}
    assert ask(session, "initialize", INITIALIZE)["protocolVersion"] == "2025-06-18"
    assert ask(session, "foo/bar", {}) == {"code": -32601, "message": "method not found: foo/bar"}


def test_unknown_notifications_and_replies_are_ignored() -> None:
    session = opened()
    assert session.handle(line("notifications/roots/list_changed")) is None
    assert session.handle(line("notifications/cancelled", {})) is None
    assert session.handle(b'{"jsonrpc":"2.0","id":null,"error":{"code":1,"message":"x"}}') is None


def test_a_call_says_what_to_run() -> None:
    step = call(opened(), {"command": "ls", "workdir": "/w", "timeout_ms": 5, "login": False, "bogus": 1})
    assert isinstance(step, StartCall)
    assert (step.id.key, step.params, step.state) == (9, ExecParams("ls", "/w", 5, False), None)


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"name": "nope", "arguments": {}}, "tool not found"),
        ({"name": "shell"}, "failed to deserialize parameters: missing field `command`"),
        ({"name": "shell", "arguments": None}, "failed to deserialize parameters: missing field `command`"),
        (
            {"name": "shell", "arguments": []},
            "failed to deserialize parameters: invalid type: sequence, expected a map",
        ),
        ({}, "invalid params: Object missing required field `name`"),
        (None, "invalid params: Expected `object`, got `null`"),
        ({"name": "shell", "_meta": 5}, "invalid params: Expected `object | null`, got `int` - at `$._meta`"),
    ],
)
def test_a_bad_call_is_refused(params: object, message: str) -> None:
    assert ask(opened(), "tools/call", params) == {"code": -32602, "message": message}


def test_a_cancellation_names_the_call() -> None:
    session = opened()
    step = session.handle(line("notifications/cancelled", {"requestId": "a", "reason": "tired"}))
    assert step == CancelCall("a", "tired")
    assert session.handle(line("notifications/cancelled", {"requestId": 3})) == CancelCall(3, None)


@pytest.mark.parametrize(
    ("reply", "meaning"),
    [
        ('"result":{"action":"accept","content":{}}', Answer.ACCEPT),
        ('"result":{"action":"decline"}', Answer.DECLINE),
        ('"result":{"action":"cancel","content":5}', Answer.CANCEL),
        ('"result":{"action":"failed"}', Answer.FAILED),
        ('"result":{"action":5}', Answer.FAILED),
        ('"result":{}', Answer.FAILED),
        ('"result":null', Answer.FAILED),
        ('"error":{"code":-32000,"message":"no"}', Answer.FAILED),
    ],
)
def test_an_answer_is_read(reply: str, meaning: Answer) -> None:
    assert opened().handle(f'{{"jsonrpc":"2.0","id":4,{reply}}}'.encode()) == Answered(4, meaning)


KNOWN_METHODS = ["tools/call", UPDATE, "initialize", "notifications/cancelled", "tools/list", "ping", "x"]
NAMES = [
    *("name", "arguments", "_meta", META, "command", "workdir", "timeout_ms", "login", "requestId"),
    *("sandboxPolicy", "sandboxCwd", "permissionProfile", "type", "writable_roots", "file_system"),
    *("network", "entries", "path", "access", "action", "protocolVersion", "codexLinuxSandboxExe"),
]
TEXTS = [
    "shell",
    "workspace-write",
    "managed",
    "restricted",
    "accept",
    "/",
    "file:///x",
    "file:",
    "\0",
    "\ud800",
]
VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats()
    | st.sampled_from(TEXTS)
    | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.sampled_from(NAMES) | st.text(max_size=3), inner, max_size=6)
    ),
    max_leaves=20,
)


@given(
    st.lists(
        st.fixed_dictionaries(
            {"jsonrpc": st.just("2.0")},
            optional={
                "id": VALUES,
                "method": st.sampled_from(KNOWN_METHODS),
                "params": VALUES,
                "result": VALUES,
                "error": VALUES,
            },
        ),
        max_size=5,
    )
)
def test_whatever_comes_is_answered_or_ignored(messages: list[JsonObject]) -> None:
    session = opened()
    for message in messages:
        step = session.handle(json.dumps(message).encode())
        assert not isinstance(step, WrongStart)
        if isinstance(step, Send):
            found = json.loads(step.message)
            assert ("error" in found) != ("result" in found)


def test_a_state_counts_for_the_calls_behind_it() -> None:
    session = opened()
    before = started(session)
    assert ask(session, UPDATE, FULL_ACCESS) == {}
    after = started(session)
    read_only = {"sandboxPolicy": {"type": "read-only"}, "sandboxCwd": "/srv"}
    assert session.handle(line(UPDATE, read_only)) is None
    last = started(session)
    assert before.state is None
    assert after.state is not None
    assert last.state is not None
    assert (after.state.policy.kind, last.state.policy.kind) == (DISABLED, MANAGED)
    assert last.state.sandbox_cwd == "/srv"


def test_a_refused_state_goes_back_and_leaves_the_old_one() -> None:
    session = opened()
    assert ask(session, UPDATE, FULL_ACCESS) == {}
    assert ask(session, UPDATE) == {"code": -32602, "message": "missing params for sandbox state request"}
    bogus: JsonObject = {"sandboxPolicy": {"type": "bogus"}, "sandboxCwd": "/"}
    others: list[object] = [{"sandboxPolicy": {}}, [], bogus, "x"]
    for refused in others:
        assert ask(session, UPDATE, refused) == {
            "code": -32602,
            "message": "failed to deserialize sandbox state",
            "data": refused,
        }
        assert session.handle(line(UPDATE, refused)) is None
    state = started(session).state
    assert state is not None
    assert state.policy.kind == DISABLED


def test_a_state_that_is_too_long_is_refused_without_being_sent_back() -> None:
    long = {**FULL_ACCESS, "more": "x" * STATE_BYTES}
    assert ask(opened(), UPDATE, long) == {"code": -32602, "message": "failed to deserialize sandbox state"}


def test_the_other_name_of_a_state_in_a_call_counts_where_the_first_is_missing() -> None:
    read_only = {"sandboxPolicy": {"type": "read-only"}, "sandboxCwd": "/"}
    own = started(opened(), _meta={"codex/sandbox-state": FULL_ACCESS}).state
    assert own is not None
    assert own.policy.kind == DISABLED
    own = started(opened(), _meta={"codex/sandbox-state": FULL_ACCESS, META: read_only}).state
    assert own is not None
    assert own.policy.kind == MANAGED


def test_a_state_in_a_call_counts_for_that_call_only() -> None:
    session = opened()
    own = started(session, _meta={"progressToken": 1, META: FULL_ACCESS}).state
    assert own is not None
    assert own.policy.kind == DISABLED
    assert started(session).state is None
    assert started(session, _meta={"progressToken": 1}).state is None
    assert started(session, _meta=None).state is None


@pytest.mark.parametrize("meta", [{"sandboxPolicy": {}}, 5, {"sandboxCwd": "/"}])
def test_a_call_with_a_state_that_is_not_understood_is_not_started(meta: object) -> None:
    step = call(opened(), {"command": "true", "workdir": "/"}, _meta={META: meta})
    assert answer(step)["error"] == {
        "code": -32602,
        "message": "failed to deserialize sandbox state",
        "data": meta,
    }


def test_a_call_with_no_state_where_one_belongs_is_not_started() -> None:
    step = call(opened(), {"command": "true", "workdir": "/"}, _meta={META: None})
    assert isinstance(step, Send)

"""What a client is told of a decision is the same message, whether it is made anew or of a remembered one."""

from __future__ import annotations

import itertools
import json
import re
import tracemalloc

from execserver.egress.decisions import (
    ALLOW,
    BY_CLIENT,
    REBOUND,
    UNIX_SOCKET,
    Action,
    DecisionRecord,
    Protocol,
    Question,
    Verdict,
)
from execserver.egress.remembering import MAX_REMEMBERED
from execserver.services.clients.attachment import Attachment
from execserver.services.egress.launch import teller
from tests.support.heard import Heard

ODD = 'a"timestamp":""b\\"client":""\u00e4\x01'


def test_each_message_says_what_was_decided_when_and_for_whom() -> None:
    told = Heard()
    attachment = Attachment()
    attachment.sink = told
    tell = teller(ODD, attachment, lambda process_id, record: None)
    verdicts = (ALLOW, BY_CLIENT, REBOUND, UNIX_SOCKET, Verdict(Action.DENY, ODD, note=ODD))
    questions = [
        Question(protocol, host, 443) for protocol in Protocol for host in ("a.example", "::1", "timestamp")
    ]
    cases = list(itertools.product(verdicts, questions, ("GET", "client", None)))
    for number, (verdict, question, method) in enumerate([*cases, *cases]):
        client = f"127.0.0.1:{number}"
        tell(DecisionRecord(verdict, question, method, client))
        message = json.loads(told.messages[-1])
        assert message["method"] == "network/policyDecision"
        params = message["params"]
        assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", params.pop("timestamp"))
        assert params == {
            "processId": ODD,
            "scope": verdict.scope.value,
            "decision": verdict.action.value,
            "source": verdict.source.value,
            "reason": verdict.reason,
            "protocol": question.protocol.value,
            "host": question.host,
            "port": 443,
            **({} if method is None else {"method": method}),
            "client": client,
            "policyOverride": verdict.override,
        }
    assert len(told.messages) == 2 * len(cases) > MAX_REMEMBERED


def test_long_methods_of_a_process_are_told_and_not_remembered() -> None:
    told, attachment = Heard(), Attachment()
    attachment.sink = told
    tell = teller("p", attachment, lambda process_id, record: None)
    question = Question(Protocol.HTTP, "a.example", 80)
    tracemalloc.start()
    try:
        for number in range(MAX_REMEMBERED):
            tell(DecisionRecord(ALLOW, question, f"{number:060000}", "127.0.0.1:1"))
            assert json.loads(told.messages.pop())["params"]["method"] == f"{number:060000}"
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert held < 1_000_000  # it would be thirty times as much

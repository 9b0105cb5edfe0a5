"""The answers to refused requests; e2e/test_egress_transcripts.py compares the recorded ones."""

from __future__ import annotations

import json

from execserver.egress import answers
from execserver.egress.decisions import NOT_ALLOWED, Action, Protocol, Question, Source, Verdict
from execserver.egress.rules_file import parse_rules


def test_a_reason_of_the_client_is_written_as_json() -> None:
    verdict = Verdict(Action.ASK, 'a "b"\r\n\x00ü', Source.DECIDER)
    answer = answers.blocked(verdict, Question(Protocol.HTTP, "a.example", 80), b"now", closes=True)
    head, _, body = answer.partition(b"\r\n\r\n")
    assert head == (
        b"HTTP/1.1 403 Forbidden\r\ncontent-type: application/json\r\nx-proxy-error: blocked-by-policy\r\n"
        b"connection: close\r\ncontent-length: %d\r\ndate: now" % len(body)
    )
    assert json.loads(body)["reason"] == 'a "b"\r\n\x00ü'


def test_what_is_no_request_ends_the_connection() -> None:
    assert answers.junk(b"now").startswith(b"HTTP/1.1 400 Bad Request\r\nconnection: close\r\n")


def test_the_note_of_a_refused_tunnel_is_in_the_line_that_programs_show() -> None:
    question = Question(Protocol.HTTPS_CONNECT, "index.example.org", 443)
    noted = parse_rules("").of("").refusal(question)
    assert noted is not None
    line, _, _ = answers.tunnel_blocked(noted, b"now", closes=False).partition(b"\r\n")
    assert line == (
        b"HTTP/1.1 403 Forbidden: index.example.org is in no list of the network rules of this machine; "
        b'to let it through: allow = ["https://index.example.org"]'
    )
    plain = answers.tunnel_blocked(Verdict(Action.DENY, NOT_ALLOWED), b"now", closes=False)
    assert plain.startswith(b"HTTP/1.1 403 Forbidden\r\n")

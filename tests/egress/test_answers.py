"""The answers to refused requests; e2e/test_egress_transcripts.py compares the recorded ones."""

from __future__ import annotations

import json

from execserver.egress import answers
from execserver.egress.decisions import Action, Protocol, Question, Source, Verdict


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

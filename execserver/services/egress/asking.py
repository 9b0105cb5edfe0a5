"""Asks the client whether a process may connect to a host that no rule allows (wire contract, 8.9)."""

from __future__ import annotations

import msgspec

from execserver.egress.decisions import (
    BY_CLIENT,
    NOT_ALLOWED,
    POLICY_DENIED,
    Action,
    Question,
    Source,
    Verdict,
)
from execserver.protocol.envelope import ErrorMessage, Response
from execserver.protocol.methods import NETWORK_POLICY_REQUEST
from execserver.protocol.network import (
    NetworkPolicyDestination,
    NetworkPolicyRequestParams,
    NetworkPolicyResponse,
)
from execserver.services.clients.attachment import Attachment
from execserver.services.egress.judging import Ask

MAX_REASON_BYTES = 1024
_LONGEST_S = 86_400.0

_NO_ANSWER = Verdict(Action.DENY, NOT_ALLOWED, Source.DECIDER)
_decoder = msgspec.json.Decoder(NetworkPolicyResponse)


def asker(process_id: str, attachment: Attachment, timeout_ms: int, grace_s: float) -> Ask:
    """Return what asks the client that holds the session of a process at the time.

    It waits for `timeout_ms`, the limit of the client itself, and `grace_s` more for its last answer.
    """
    timeout_s = min(timeout_ms / 1000 + grace_s, _LONGEST_S)

    def ask(question: Question) -> Verdict:
        questions = attachment.questions
        if questions is None:
            return _NO_ANSWER
        destination = NetworkPolicyDestination(
            protocol=question.protocol.value, host=question.host, port=question.port
        )
        params = NetworkPolicyRequestParams(process_id=process_id, request=destination)
        return verdict_of(questions.ask(NETWORK_POLICY_REQUEST.name, params, timeout_s))

    return ask


def verdict_of(answer: Response | ErrorMessage | None) -> Verdict:
    """Return what a client's answer decides; everything that is no clear yes is a no."""
    if not isinstance(answer, Response):
        return _NO_ANSWER
    try:
        decision = _decoder.decode(bytes(answer.result)).decision
        action = Action(decision.type)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, ValueError):
        return _NO_ANSWER
    if action is Action.ALLOW:
        return BY_CLIENT
    reason = decision.reason
    if reason is None or len(reason.encode()) > MAX_REASON_BYTES:
        return _NO_ANSWER
    return Verdict(action, reason or POLICY_DENIED, Source.DECIDER)

"""Requests and their decode errors out of the recorded traffic."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from execserver.protocol.decoding import decode_params
from execserver.protocol.envelope import Request, parse_message
from execserver.protocol.errors import RpcError
from execserver.protocol.methods import METHODS

_HERE = Path(__file__).resolve().parent
_TRANSCRIPTS = _HERE.parent / "transcripts"


class Exchange(NamedTuple):
    """One request as it was sent, and the error it was answered with, if any."""

    text: str
    error: dict[str, Any] | None


def exchanges(transcript: str) -> Iterator[Exchange]:
    """Yield the answered requests of a transcript in the order of the answers."""
    asked: dict[tuple[str, str], str] = {}
    for line in (_TRANSCRIPTS / f"{transcript}.jsonl").read_text().splitlines():
        record = json.loads(line)
        message = record.get("msg")
        if record.get("dir") == "c2s":
            text = record.get("raw") or json.dumps(message)
            if isinstance(message, dict) or text.startswith('{"id"'):
                asked[record["conn"], json.dumps(_id_of(text))] = text
        elif record.get("dir") == "s2c" and isinstance(message, dict) and "id" in message:
            sent = asked.pop((record["conn"], json.dumps(message["id"])), None)
            if sent is not None:
                yield Exchange(sent, message.get("error"))


def _id_of(text: str) -> object:
    try:
        return json.loads(text).get("id")
    except ValueError:
        return None


def data_lines(name: str) -> list[Any]:
    """Return the values of a file of JSON lines beside the tests."""
    return [json.loads(line) for line in (_HERE / "data" / name).read_text().splitlines()]


def decode_error(text: str) -> str | None:
    """Decode a request as the server does; return the text of the decode error, or None."""
    request = parse_message(text)
    assert isinstance(request, Request)
    try:
        decode_params(METHODS[request.method], request.params)
    except RpcError as error:
        return error.message if error.code == -32602 else f"{error.code} instead of -32602: {error.message}"
    return None


def without_member(text: str) -> str:
    """Return an error text without the member that ours names in brackets at the end."""
    return text.rpartition(" (in `")[0] if text.endswith("`)") else text

"""The recorded traffic of `--ws-auth` as data, and tokens of a test's own.

Recorded from the reference server 0.169.0: its command line, and its port.  `RECORDED_AT` is the time at
which the tokens of the second recording mean what their cases are called.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
from pathlib import Path
from typing import Any, NamedTuple

FOLDER = Path(__file__).resolve().parents[1] / "access" / "data"
RECORDED_AT = 1_795_347_770
SECRET = b"0123456789abcdef0123456789abcdef"
HEADER = {"alg": "HS256", "typ": "JWT"}
PLACE = "/ROOT"  # stands for the folder with the recorded files
UPGRADE = (
    "Connection: Upgrade\nUpgrade: websocket\nSec-WebSocket-Version: 13\n"
    "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ=="
)


class Case(NamedTuple):
    """One recorded request and its answer, and the options of the server that gave it."""

    name: str
    options: tuple[str, ...]
    request: str
    status: int
    headers: dict[str, str]
    body: str


def lay_files(name: str, folder: Path) -> None:
    """Write the files that a recording names."""
    for file, content in _entries(name)[0]["files"].items():
        (folder / file).write_text(content)


def command_lines(folder: Path) -> list[dict[str, Any]]:
    """Return the recorded command lines with what became of them."""
    return [_placed(entry, folder) for entry in _entries("30-cli-ws-auth")[1:]]


def cases(folder: Path) -> list[Case]:
    """Return the recorded requests."""
    found: list[Case] = []
    options: tuple[str, ...] = ()
    for entry in _entries("31-ws-auth-http")[1:]:
        if "server" in entry:
            options = tuple(_placed(entry, folder)["server"])
            options = tuple(
                word.replace("SHA256(abc)", hashlib.sha256(b"abc").hexdigest()) for word in options
            )
            continue
        used = options
        if entry["case"] == "trimmed":  # another file, whose server has no line of its own
            used = ("--ws-auth", "capability-token", "--ws-token-file", f"{folder}/tok2")
        request = _request(entry["request"])
        found.append(Case(entry["case"], used, request, entry["status"], entry["headers"], entry["body"]))
    return found


def encoded(data: bytes) -> bytes:
    """Return base64url without padding."""
    return base64.urlsafe_b64encode(data).rstrip(b"=")


def sign(header: object, claims: object, secret: bytes = SECRET) -> str:
    """Return a token; parts that are bytes are taken as they are."""
    parts = [part if isinstance(part, bytes) else json.dumps(part).encode() for part in (header, claims)]
    signed = b".".join(map(encoded, parts))
    return b".".join((signed, encoded(hmac.digest(secret, signed, hashlib.sha256)))).decode()


def moved(request: str, seconds: int) -> str:
    """Return a recorded request with all times of its token later; one with a wrong signature stays."""
    before, bearer, rest = request.partition("Bearer ")
    token, newline, behind = rest.partition("\n")
    header, _, claims = token.rpartition(".")[0].partition(".")
    if not claims or not all(map(str.isascii, token)):
        return request
    try:
        parts = [json.loads(base64.urlsafe_b64decode(part + "==")) for part in (header, claims)]
    except ValueError:
        return request
    if not isinstance(parts[1], dict) or sign(*parts) != token:
        return request
    times = {name: value + seconds for name, value in parts[1].items() if isinstance(value, int)}
    later = {
        name: value if value > 2**60 else times[name] for name, value in parts[1].items() if name in times
    }
    return f"{before}{bearer}{sign(parts[0], parts[1] | later)}{newline}{behind}"


def _entries(name: str) -> list[dict[str, Any]]:
    lines = (FOLDER / f"{name}.0.169.0.jsonl").read_text().splitlines()
    return [json.loads(line)["msg"] for line in lines]


def _placed(entry: dict[str, Any], folder: Path) -> dict[str, Any]:
    text = json.dumps(entry).replace(PLACE, str(folder))
    placed: dict[str, Any] = json.loads(text)
    return placed


def _request(recorded: dict[str, Any]) -> str:
    if "upgrade" in recorded:
        lines = [f"GET {recorded['upgrade']} HTTP/1.1", "Host: 127.0.0.1:1", *UPGRADE.splitlines()]
        headers = recorded["headers"]
    else:
        lines = [f"{recorded['method']} {recorded['path']} HTTP/1.1", "Host: 127.0.0.1:1"]
        headers = list(recorded["headers"].items())
    return "\n".join([*lines, *(f"{name}: {value}" for name, value in headers)])

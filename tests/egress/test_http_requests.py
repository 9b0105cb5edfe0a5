"""What a head asks for is the same whether it is read or remembered, and no secret is remembered."""

from __future__ import annotations

import itertools

import pytest

from execserver.egress.http_heads import BadHead, parse_request
from execserver.egress.http_requests import Asked, Heads
from execserver.egress.remembering import MAX_REMEMBERED

METHODS = ("CONNECT", "GET", "POST", "OPTIONS")
TARGETS = (
    "a.example:443",
    "a.example",
    "http://a.example/x",
    "https://a.example/",
    "/x",
    "*",
    "http://u@a/",
    "",
)
HOSTS = ((), ("Host: a.example",), ("host:",), ("Host: b.example:1",), ("Host: a", "Host: a"))
FRAMINGS = ((), ("Content-Length: 3",), ("Transfer-Encoding: chunked",), ("Content-Length: x",))
OTHERS = (
    (),
    ("User-Agent: x", "Connection: close"),
    ("Connection: host",),
    ("bad line",),
    ("X-Unix-Socket: /a",),
)


def head(line: str, *fields: str) -> bytes:
    return "\r\n".join((line, *fields, "", "")).encode()


def meaning(asked: Asked) -> tuple[object, ...]:
    """Return all that is done with it."""
    request, target, question = asked.request, asked.target, asked.question
    place = target and (target.host, target.port, target.path, target.is_tls)
    heads = (asked.onward, asked.through(b"Basic x"), asked.through(None)) if target else ()
    where = question and question.key
    line = request.method, request.target, request.minor, request.fields, request.keeps_alive
    return *line, asked.framing, place, where, asked.refusal, heads


def found(read: object, data: bytes) -> object:
    try:
        return meaning(read(data))  # type: ignore[operator]
    except BadHead as error:
        return str(error)


def test_a_head_means_the_same_each_time() -> None:
    heads = Heads()
    shapes = itertools.product(METHODS, TARGETS, HOSTS, FRAMINGS, OTHERS, "01")
    made = [head(f"{m} {t} HTTP/1.{v}", *h, *f, *o) for m, t, h, f, o, v in shapes]
    kinds = set()
    for data in made:
        fresh = found(lambda data: Asked(parse_request(data)), data)
        assert found(heads.read, data) == fresh, data
        assert found(heads.read, data) == fresh, data
        kinds.add(fresh if isinstance(fresh, str) else fresh[-2])  # type: ignore[index]
    assert len(kinds) >= 6  # refusals of each kind, and none


def test_a_head_that_comes_again_is_not_read_again() -> None:
    heads = Heads()
    data = head("CONNECT a.example:443 HTTP/1.1", "Host: a.example:443", "Proxy-Connection: Keep-Alive")
    assert heads.read(data) is heads.read(data)
    assert heads.read(data) is not Heads().read(data)


@pytest.mark.parametrize(
    "data",
    [
        head("CONNECT a.example:443 HTTP/1.1", "Proxy-Authorization: Basic YTpi"),
        head("GET http://a.example/ HTTP/1.1", "authorization: Bearer x"),
        head("GET http://a.example/ HTTP/1.1", "Cookie: a=b"),
        head("GET http://a.example/ HTTP/1.1", "X-Api-Key: x"),
        head("GET http://a.example/?token=x HTTP/1.1"),
        head("GET http://a.example/ HTTP/1.1", f"User-Agent: {'x' * 512}"),
    ],
)
def test_what_could_hold_a_secret_and_what_is_long_is_not_remembered(data: bytes) -> None:
    heads = Heads()
    assert meaning(heads.read(data)) == meaning(heads.read(data))
    assert heads._known == {}


def test_only_the_last_heads_are_remembered() -> None:
    heads = Heads()
    for index in range(3 * MAX_REMEMBERED):
        heads.read(head(f"CONNECT n{index}.example:443 HTTP/1.1"))
        assert len(heads._known) <= MAX_REMEMBERED

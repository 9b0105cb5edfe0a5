"""Stand-ins for credentials, and the requests that get the real ones."""

from __future__ import annotations

import base64
import json
import re

import pytest

from execserver.egress.masking import BROKERED, Masking
from execserver.egress.providers import Auth, Provider
from execserver.egress.value_patterns import TooMuch

SEED = b"s" * 32
KEY = b"sk-proj-abcdefghijklmnopqrstuvwxyz0123456789ABCDEFGHIJ"
TOKEN = b"ghp_abcdefghijklmnopqrstuvwxyz0123456789"
VENDOR = b"vendor_abcdefghij"


def vendor(*auths: Auth, header: str | None = None, prefix: str | None = None) -> Provider:
    return Provider(
        "vendor",
        ("VENDOR_KEY",),
        ("https://api.vendor.example/v1",),
        patterns=("vendor_[a-z]{10}",),
        auths=auths,
        header=header,
        prefix=prefix,
    )


def sent(
    masking: Masking, name: str, value: bytes, target: str = "/v1/x", host: str = "api.vendor.example"
) -> bytes:
    """Return the value of a field after masking."""
    ((_, made),) = masking.fields([(name.encode(), value)], host, 443, target)
    return made


@pytest.mark.parametrize(
    ("name", "value", "shape"),
    [
        ("OPENAI_API_KEY", KEY, r"sk-proj-masked[A-Za-z0-9]{40}"),
        ("OPENAI_API_KEY", b"plain-value", r"sk-masked[A-Za-z0-9]{42}"),
        ("GITHUB_TOKEN", TOKEN, r"ghp_masked[A-Za-z0-9]{30}"),
        ("GH_TOKEN", b"short", r"ghp_masked[A-Za-z0-9]{30}"),
        ("GH_TOKEN", b"github_pat_" + b"a" * 82, r"github_pat_masked[A-Za-z0-9]{76}"),
        ("VENDOR_KEY", VENDOR, r"vendor_[a-z]{10}"),
    ],
)
def test_a_stand_in_has_the_shape_of_the_value(name: str, value: bytes, shape: str) -> None:
    variables = Masking(SEED, [vendor()]).masked({name.encode(): value, b"PATH": b"/bin"})
    stand_in = variables[name.encode()].decode()
    assert re.fullmatch(shape, stand_in)
    assert stand_in.encode() != value
    assert variables[b"PATH"] == b"/bin"
    assert json.loads(variables[BROKERED]) == [[f"@alias:{name}", stand_in], [name, stand_in]]


def test_a_server_has_the_same_stand_in_for_a_value_each_time_and_another_server_another_one() -> None:
    env = {b"OPENAI_API_KEY": KEY}
    first = Masking(SEED).masked(env)
    assert first == Masking(SEED).masked(env)
    assert first[b"OPENAI_API_KEY"] != Masking(b"t" * 32).masked(env)[b"OPENAI_API_KEY"]
    assert (
        first[b"OPENAI_API_KEY"] != Masking(SEED).masked({b"OPENAI_API_KEY": KEY + b"x"})[b"OPENAI_API_KEY"]
    )


def test_the_value_is_nowhere_else_in_the_environment_and_the_words() -> None:
    masking = Masking(SEED)
    env = {
        b"GH_TOKEN": TOKEN,
        b"COPY": TOKEN,
        b"URL": b"https://x:" + TOKEN + b"@github.com/a",
        b"\xff": TOKEN,
    }
    variables = masking.masked(env)
    stand_in = variables[b"GH_TOKEN"]
    assert all(TOKEN not in value for value in variables.values())
    assert variables[b"COPY"] == variables[b"\xff"] == stand_in
    assert variables[b"URL"] == b"https://x:" + stand_in + b"@github.com/a"
    assert masking.hidden(b"curl -H 'Bearer " + TOKEN + b"'") == b"curl -H 'Bearer " + stand_in + b"'"


def test_a_short_value_is_no_part_of_other_texts() -> None:
    masking = Masking(SEED)
    variables = masking.masked({b"GH_TOKEN": b"short", b"A": b"a short text", b"B": b"short"})
    assert variables[b"A"] == b"a short text"
    assert variables[b"B"] == variables[b"GH_TOKEN"] != b"short"


def test_words_are_hidden_all_at_once_as_one_by_one() -> None:
    masking = Masking(SEED, [vendor()])
    stand_in = masking.masked({b"GH_TOKEN": TOKEN, b"OPENAI_API_KEY": b"short", b"VENDOR_KEY": VENDOR})[
        b"GH_TOKEN"
    ]
    words = [b"", b"a", TOKEN, b"short", b"shorter", TOKEN + VENDOR + TOKEN, b"", b"x" + TOKEN, b"\xff", b""]
    assert masking.all_hidden(words) == [masking.hidden(word) for word in words]
    assert masking.all_hidden(words)[2] == stand_in
    assert masking.all_hidden([]) == []
    # With a NUL nothing starts: each keeps its place until that is said.
    assert masking.all_hidden([b"a\0b", TOKEN + b"\0"]) == [b"a\0b", stand_in + b"\0"]


def test_no_real_value_is_left_where_masking_would_take_long() -> None:
    names = [f"KEY_{number}" for number in range(100)]
    env = {name.encode(): b"a" * 190 for name in names}
    masking = Masking(SEED, [Provider("slow", names, ("a.example",), patterns=["(?:a?){200}b"] * 64)])
    with pytest.raises(TooMuch):
        masking.masked(env)


def test_as_many_long_credentials_as_may_be_are_masked() -> None:
    names = [f"KEY_{number}" for number in range(124)]
    env = {name.encode(): b"eyJ%04d" % number + b"a" * 1000 for number, name in enumerate(names)}
    masking = Masking(SEED, [Provider("jwt", names, ("a.example",), patterns=["eyJ[A-Za-z0-9_-]{20,}"])])
    variables = masking.masked(env)
    assert not masking.unmasked
    assert not any(b"a" * 100 in variables[name] for name in env)


def test_stand_ins_are_taken_over_and_not_made_again() -> None:
    env = {b"GH_TOKEN": TOKEN, b"VENDOR_KEY": VENDOR}
    first = Masking(SEED, [vendor(Auth.BEARER)])
    variables = first.masked(env)
    other = Masking(b"another seed" * 3, [vendor(Auth.BEARER)])
    other.find_again(first.found())
    assert other.found() == first.found()
    assert sent(other, "Authorization", b"Bearer " + variables[b"VENDOR_KEY"]) == b"Bearer " + VENDOR
    assert other.masked(env)[b"GH_TOKEN"] == variables[b"GH_TOKEN"]


def test_what_cannot_be_masked_is_said_without_its_value() -> None:
    bad = {"other": "a pattern cannot be used: it ends too early"}
    masking = Masking(SEED, [vendor(), Provider("mine", ("GH_TOKEN",), ("a.example",), patterns=("x",))], bad)
    env = {
        b"VENDOR_KEY": b"hunter2",
        b"GH_ENTERPRISE_TOKEN": TOKEN,
        b"OPENAI_API_KEY": b"a\nb",
        b"GH_TOKEN": b" x",
    }
    variables = masking.masked(env)
    assert {name: variables[name] for name in env} == env
    assert json.loads(variables[b"EXECSERVER_UNMASKED_CREDENTIALS"]) == [
        ["GH_ENTERPRISE_TOKEN", "GH_HOST names no destination"],
        ["GH_TOKEN", "its value does not fit into a header"],
        ["OPENAI_API_KEY", "its value does not fit into a header"],
        ["VENDOR_KEY", "its value matches no pattern of the provider"],
        ["mine", "it has a variable of another provider"],
        ["other", "a pattern cannot be used: it ends too early"],
    ]
    assert json.loads(variables[BROKERED]) == []


def test_a_stand_in_that_comes_back_is_no_new_credential() -> None:
    masking = Masking(SEED)
    once = masking.masked({b"GH_TOKEN": TOKEN})
    assert masking.masked(once)[b"GH_TOKEN"] == once[b"GH_TOKEN"]
    assert len(masking.credentials) == 1


@pytest.mark.parametrize(
    ("auths", "scheme"),
    [((), "Bearer "), ((Auth.BEARER,), "bearer  "), ((Auth.TOKEN,), "token ")],
)
def test_authorization_gets_the_real_value(auths: tuple[Auth, ...], scheme: str) -> None:
    masking = Masking(SEED, [vendor(*auths)])
    stand_in = masking.masked({b"VENDOR_KEY": VENDOR})[b"VENDOR_KEY"]
    assert sent(masking, "Authorization", scheme.encode() + stand_in).split() == [
        scheme.strip().encode(),
        VENDOR,
    ]


@pytest.mark.parametrize("pair", [b"%b", b"user:%b", b"%b:", b"%b:x-oauth-basic"])
def test_basic_authorization_gets_it_too(pair: bytes) -> None:
    masking = Masking(SEED, [vendor(Auth.BASIC)])
    stand_in = masking.masked({b"VENDOR_KEY": VENDOR})[b"VENDOR_KEY"]
    made = sent(masking, "authorization", b"Basic " + base64.b64encode(pair.replace(b"%b", stand_in)))
    assert base64.b64decode(made.removeprefix(b"Basic ")) == pair.replace(b"%b", VENDOR)


def test_a_header_of_the_providers_own_gets_it() -> None:
    masking = Masking(SEED, [vendor(Auth.HEADER, header="X-Key", prefix="K ")])
    stand_in = masking.masked({b"VENDOR_KEY": VENDOR})[b"VENDOR_KEY"]
    assert sent(masking, "x-KEY", b"K " + stand_in) == b"K " + VENDOR
    assert sent(masking, "x-key", stand_in) == stand_in
    assert sent(masking, "authorization", b"Bearer " + stand_in) == b"Bearer " + stand_in


def test_nothing_else_of_a_request_does() -> None:
    masking = Masking(SEED, [vendor()])
    stand_in = masking.masked({b"VENDOR_KEY": VENDOR})[b"VENDOR_KEY"]
    bearer = b"Bearer " + stand_in
    assert sent(masking, "x-other", bearer) == bearer
    assert sent(masking, "authorization", b"token " + stand_in) == b"token " + stand_in
    assert sent(masking, "authorization", bearer + b"x") == bearer + b"x"
    assert sent(masking, "authorization", b"Basic !!") == b"Basic !!"
    assert sent(masking, "authorization", bearer, target="/v2/x") == bearer
    assert sent(masking, "authorization", bearer, target="/v1/../v2") == bearer
    assert sent(masking, "authorization", bearer, host="evil.example") == bearer
    twice = [(b"Authorization", bearer), (b"authorization", bearer)]
    assert masking.fields(twice, "api.vendor.example", 443, "/v1") == twice


def test_a_credential_goes_to_its_own_provider_only() -> None:
    masking = Masking(SEED, [vendor()])
    variables = masking.masked({b"VENDOR_KEY": VENDOR, b"OPENAI_API_KEY": KEY, b"GH_TOKEN": TOKEN})
    openai = b"Bearer " + variables[b"OPENAI_API_KEY"]
    assert sent(masking, "authorization", openai, host="api.openai.com") == b"Bearer " + KEY
    assert sent(masking, "authorization", openai) == openai
    assert sent(masking, "authorization", openai, host="api.github.com") == openai
    assert masking.concerns("uploads.github.com", 443)
    assert not masking.concerns("uploads.github.com", 80)
    assert not masking.concerns("pypi.org", 443)


def test_a_masking_that_takes_over_keeps_each_credential_to_its_own_destination() -> None:
    # Start-up files, which a process may have written, name another destination with a credential of theirs.
    masking, other = Masking(SEED), b"ghp_zyxwvutsrqponmlkjihgfedcba9876543210"
    stand_in = masking.masked({b"GH_ENTERPRISE_TOKEN": TOKEN, b"GH_HOST": b"good.example"})[
        b"GH_ENTERPRISE_TOKEN"
    ]
    masking.masked({b"GITHUB_ENTERPRISE_TOKEN": other, b"GH_HOST": b"evil.example"})
    again = Masking(SEED)
    again.find_again(masking.found())
    bearer = b"token " + stand_in
    for each in (masking, again):
        assert sent(each, "authorization", bearer, host="good.example") == b"token " + TOKEN
        assert sent(each, "authorization", bearer, host="evil.example") == bearer
    assert [(one.name, one.stand_in) for one in again.credentials] == [
        (one.name, one.stand_in) for one in masking.credentials
    ]


@pytest.mark.parametrize("name", [b"X-Original-URL", b"x-rewrite-url"])
def test_a_request_that_names_another_path_beside_its_own_gets_no_credential(name: bytes) -> None:
    masking = Masking(SEED, [vendor()])
    stand_in = masking.masked({b"VENDOR_KEY": VENDOR})[b"VENDOR_KEY"]
    fields = [(b"authorization", b"Bearer " + stand_in), (name, b"/v2/x")]
    assert masking.fields(fields, "api.vendor.example", 443, "/v1/x") == fields

"""Which keys of a set are taken, and which sets are refused as a whole."""

from __future__ import annotations

import json
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric import ec, padding, rsa
from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature
from cryptography.hazmat.primitives.hashes import SHA256, SHA384, SHA512

from execserver.access.oidc.algorithms import UnusableKey, public_key
from execserver.access.oidc.key_set import MAX_KEYS, BadKeySet, read_key_set
from tests.support.oidc import SigningKey, ec_key, ed_key, encoded, key_set, number, rsa_key

RSA, EC, ED = rsa_key(), ec_key(), ed_key()
DIGESTS = {"256": SHA256(), "384": SHA384(), "512": SHA512()}


def reason(jwk: dict[str, Any]) -> str:
    with pytest.raises(UnusableKey) as refused:
        public_key(jwk)
    return str(refused.value)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"use": "enc"}, "not for signatures"),
        ({"key_ops": ["sign"]}, "not for checking"),
        ({"key_ops": "verify"}, "not for checking"),
        ({"kty": "oct", "k": "c2VjcmV0"}, "kind is unknown"),
        ({"kty": ["RSA"]}, "kind is unknown"),
        ({"alg": "HS256"}, "algorithm is not taken"),
        ({"alg": "none"}, "algorithm is not taken"),
        ({"alg": "ES256"}, "algorithm is not taken"),
        ({"alg": ["RS256"]}, "algorithm is not taken"),
        (
            {"n": number(rsa.generate_private_key(65537, 1024).public_key().public_numbers().n)},
            "2048 to 8192",
        ),
        ({"n": number(1 << 9000)}, "2048 to 8192"),
        ({"n": RSA.jwk["n"] + "="}, "not base64url"),
        ({"n": None}, "it has no n"),
        ({"e": number(2**40 + 1)}, "exponent is too large"),
        ({"e": number(4)}, ""),
        ({"e": number(1)}, ""),
    ],
)
def test_a_key_of_no_use_is_left_out(change: dict[str, Any], text: str) -> None:
    assert text in reason(RSA.jwk | change)


@pytest.mark.parametrize(
    "jwk",
    [
        EC.jwk | {"x": number(5, 32)},  # off the curve
        EC.jwk | {"crv": "P-384"},
        EC.jwk | {"crv": "secp256k1"},
        EC.jwk | {"x": "AA" + EC.jwk["x"]},
        ED.jwk | {"crv": "X25519"},
        ED.jwk | {"x": encoded(b"short")},
        ED.jwk | {"x": "é"},
    ],
)
def test_a_point_that_is_none_is_left_out(jwk: dict[str, Any]) -> None:
    assert reason(jwk)


@pytest.mark.parametrize("digest", DIGESTS)
def test_every_algorithm_of_the_list_is_checked_as_it_is_defined(digest: str) -> None:
    hashing = DIGESTS[digest]
    private = rsa.generate_private_key(65537, 2048)
    numbers = private.public_key().public_numbers()
    key = public_key({"kty": "RSA", "n": number(numbers.n), "e": number(numbers.e)})
    plain = private.sign(b"text", padding.PKCS1v15(), hashing)
    salted = private.sign(b"text", padding.PSS(padding.MGF1(hashing), hashing.digest_size), hashing)
    assert key.verifies(f"RS{digest}", plain, b"text")
    assert key.verifies(f"PS{digest}", salted, b"text")
    assert not key.verifies(f"RS{digest}", salted, b"text")
    assert not key.verifies(f"PS{digest}", plain, b"text")
    curve, size = {"256": (ec.SECP256R1(), 32), "384": (ec.SECP384R1(), 48), "512": (ec.SECP521R1(), 66)}[
        digest
    ]
    elliptic = ec.generate_private_key(curve)
    point = elliptic.public_key().public_numbers()
    name = {"256": "P-256", "384": "P-384", "512": "P-521"}[digest]
    point_jwk = {"kty": "EC", "crv": name, "x": number(point.x, size), "y": number(point.y, size)}
    der = elliptic.sign(b"text", ec.ECDSA(hashing))
    r, s = decode_dss_signature(der)
    signature = r.to_bytes(size, "big") + s.to_bytes(size, "big")
    key = public_key(point_jwk)
    assert key.verifies(f"ES{digest}", signature, b"text")
    assert not key.verifies(f"ES{digest}", der, b"text")
    assert not key.verifies(f"ES{digest}", bytes(2 * size), b"text")


def test_a_key_serves_the_algorithm_it_names_only() -> None:
    signature = RSA.sign(b"text")
    assert public_key(RSA.jwk | {"alg": "RS256", "use": "sig", "key_ops": ["verify"]}).verifies(
        "RS256", signature, b"text"
    )
    assert not public_key(RSA.jwk | {"alg": "PS256"}).verifies("RS256", signature, b"text")


def test_a_set_gives_the_key_that_a_token_names() -> None:
    keys = read_key_set(key_set(RSA, EC, ED))
    assert keys.find("rsa", "RS256") is keys.find(None, "RS256")
    assert keys.find("rsa", "ES256") is None
    assert keys.find("ec", "HS256") is None


def test_a_name_that_stands_for_two_keys_stands_for_none() -> None:
    keys = read_key_set(key_set(rsa_key("same"), rsa_key("same"), ec_key("same"), rsa_key(None)))
    assert keys.find("same", "RS256") is None
    assert keys.find(None, "RS256") is None
    assert keys.find("same", "ES256") is not None  # of another kind: no doubt which is meant


def test_a_set_may_hold_what_is_of_no_use() -> None:
    others = [{"kty": "oct", "k": "AAAA", "kid": "rsa"}, None, 5, {"kty": "RSA"}, {"kid": 5, **RSA.jwk}]
    others = [*others[:-1], RSA.jwk | {"kid": 5}, RSA.jwk | {"kid": "k" * 257}]
    keys = read_key_set(json.dumps({"keys": [*others, RSA.jwk]}).encode())
    assert keys.find("rsa", "RS256") is not None
    assert keys.find("rsa", "HS256") is None


def many(count: int) -> bytes:
    jwk = json.dumps(ED.jwk)
    return f'{{"keys": [{", ".join([jwk] * count)}]}}'.encode()


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"", "not one JSON object"),
        (b"\xff", "not one JSON object"),
        (b"[]", "not one JSON object"),
        (b'{"keys": [], "keys": []}', "not one JSON object"),
        (b"[" * 200_000, "not one JSON object"),
        (b"{}", "no list of keys"),
        (b'{"keys": {}}', "no list of keys"),
        (b'{"keys": []}', "no key that can be used"),
        (many(MAX_KEYS + 1), "more than 200 keys"),
        (many(5000), "longer than 262144 bytes"),
    ],
)
def test_a_set_that_cannot_be_used_is_refused_whole(data: bytes, text: str) -> None:
    with pytest.raises(BadKeySet, match=text):
        read_key_set(data)


def test_an_unknown_signer_is_none_of_the_set() -> None:
    stranger = SigningKey("RS256", "rsa", {}, rsa_key().sign)
    found = read_key_set(key_set(RSA)).find("rsa", "RS256")
    assert found is not None
    assert not found.verifies("RS256", stranger.sign(b"text"), b"text")

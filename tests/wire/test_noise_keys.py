"""Key objects and identities."""

from __future__ import annotations

import base64
import pickle

import pytest

from execserver.wire.noise_keys import SUITE, InvalidKeyObject, PublicKeys, StaticKeys
from tests.wire.noise_vectors import identity, octets, vectors

NAMES = sorted(vectors()["keys"])


@pytest.mark.parametrize("name", NAMES)
def test_known_identities_have_the_known_public_keys(name: str) -> None:
    public = identity(name).public
    assert public == (octets("keys", name, "x25519_public"), octets("keys", name, "mlkem768_public"))
    assert public.to_json() == vectors()["keys"][name]["public_key_json"]
    assert list(public.to_json()) == ["suite", "x25519_public_key", "mlkem768_public_key"]
    assert PublicKeys.from_json(public.to_json()) == public


def changed(**members: object) -> dict[str, object]:
    known = dict(identity(NAMES[0]).public.to_json())
    return {name: value for name, value in (known | members).items() if value is not None}


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "must be a JSON object"),
        ([], "must be a JSON object"),
        (changed(extra=1), "has no member 'extra'"),
        (changed(suite="Noise_hybridIK_25519+MLKEM768_AESGCM_SHA256"), "unsupported suite"),
        (changed(suite=None), "unsupported suite"),
        (changed(x25519_public_key=None), "needs the text x25519_public_key"),
        (changed(x25519_public_key=5), "needs the text x25519_public_key"),
        (changed(x25519_public_key="*"), "x25519_public_key is not base64"),
        (changed(x25519_public_key=base64.b64encode(bytes(31)).decode()), "the base64 of 32 bytes"),
        (changed(mlkem768_public_key=base64.b64encode(bytes(1185)).decode()), "the base64 of 1184 bytes"),
        (changed(mlkem768_public_key="\u00e9"), "mlkem768_public_key is not base64"),
        (changed(mlkem768_public_key=base64.b64encode(b"\xff" * 1184).decode()), "a public key that is none"),
        (changed(x25519_public_key="A" * 42 + "B="), "the base64 of 32 bytes"),
    ],
)
def test_what_is_no_key_object_is_refused(value: object, text: str) -> None:
    with pytest.raises(InvalidKeyObject, match=text):
        PublicKeys.from_json(value)


def test_identities_differ_and_do_not_show_themselves() -> None:
    one, two = StaticKeys.generate(), StaticKeys.generate()
    assert one.public != two.public
    assert repr(one) == "<StaticKeys>"
    with pytest.raises(TypeError):
        pickle.dumps(one)


def test_the_suite_is_not_the_protocol_name() -> None:
    assert vectors()["suite_tag"] == SUITE
    assert vectors()["protocol_name"] != SUITE

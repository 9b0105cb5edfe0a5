"""Which texts are addresses, and which addresses are public."""

from __future__ import annotations

import pytest

from execserver.egress.addresses import literal


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("127.0.0.1", "127.0.0.1"),
        ("127.1", "127.0.0.1"),
        ("2130706433", "127.0.0.1"),
        ("0x7f.1", "127.0.0.1"),
        ("0x7f000001", "127.0.0.1"),
        ("0177.0.0.1", "127.0.0.1"),
        ("0x5db8d822", "93.184.216.34"),
        ("::ffff:7f00:1", "127.0.0.1"),
        ("::ffff:10.0.0.1", "10.0.0.1"),
    ],
)
def test_every_spelling_of_an_address_is_one(text: str, meant: str) -> None:
    found = literal(text)
    assert found is not None
    assert found.meant.text == meant


@pytest.mark.parametrize(
    "text",
    ["", "x", "face", "1.2.3.4.5", "256.1.1.1", "1.2.3.4 x", "example.com", "08.1.1.1", "::1%lo", "g::"],
)
def test_a_name_is_no_address(text: str) -> None:
    assert literal(text) is None


NOT_PUBLIC = [
    *(
        "0.0.0.0",
        "0.1.2.3",
        "10.0.0.1",
        "100.64.0.1",
        "100.127.255.255",
        "127.255.255.255",
        "169.254.169.254",
    ),
    *(
        "172.16.0.1",
        "172.31.255.255",
        "192.0.0.1",
        "192.0.2.1",
        "192.168.0.1",
        "198.18.0.1",
        "198.19.255.255",
    ),
    *("198.51.100.1", "203.0.113.1", "224.0.0.1", "239.1.1.1", "240.0.0.1", "255.255.255.255"),
    *("::", "::1", "fe80::1", "febf::1", "fec0::1", "fc00::1", "fd12::1", "ff02::1", "100::1"),
    # What leads to an IPv4 address that is not public: mapped, compatible, translated, 6to4.
    *(
        "::ffff:127.0.0.1",
        "::ffff:a9fe:a9fe",
        "::10.0.0.1",
        "64:ff9b::10.0.0.1",
        "2002:7f00:1::",
        "2002:a00:1::1",
        "::ffff:0:169.254.169.254",
        "64:ff9b:1::169.254.169.254",
        "2001:0:102:304:0:0:5601:5601",
    ),
]
PUBLIC = [
    *("1.1.1.1", "93.184.216.34", "100.63.255.255", "100.128.0.1", "172.15.0.1", "172.32.0.1", "198.20.0.1"),
    *(
        "223.255.255.255",
        "2001:db8::1",
        "2606:4700::1111",
        "::ffff:1.1.1.1",
        "64:ff9b::1.1.1.1",
        "2002:101:101::",
        "2001:4860:4860::8888",
        "::ffff:0:1.1.1.1",
    ),
]


@pytest.mark.parametrize("text", NOT_PUBLIC)
def test_addresses_of_machines_and_their_networks_are_not_public(text: str) -> None:
    found = literal(text)
    assert found is not None
    assert not found.is_public


@pytest.mark.parametrize("text", PUBLIC)
def test_all_other_addresses_are_public(text: str) -> None:
    found = literal(text)
    assert found is not None
    assert found.is_public


def test_loopback_is_known_in_each_spelling() -> None:
    texts = ["127.0.0.1", "127.9.9.9", "::1", "::ffff:127.0.0.1", "10.0.0.1", "::2"]
    found = [literal(text) for text in texts]
    assert [address is not None and address.is_loopback for address in found] == [True] * 4 + [False] * 2


def test_equal_addresses_are_equal() -> None:
    assert literal("127.1") == literal("127.0.0.1")
    assert len({literal("127.1"), literal("127.0.0.1"), literal("::1")}) == 2

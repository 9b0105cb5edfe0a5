"""Host headers: what is a name at all; which of them are this machine, tests/transports/test_door.py asks."""

from __future__ import annotations

import pytest

from execserver.wire.host_names import is_host, names_loopback


@pytest.mark.parametrize(
    "text", ["a", "a.example:80", "192.0.2.1", "[::1]", "[::ffff:192.0.2.1]:443", "a:00080"]
)
def test_names_and_addresses_are_hosts(text: str) -> None:
    assert is_host(text)


@pytest.mark.parametrize(
    "text", ["", "a b", "a/b", "a:b", "a:123456", "a@b", "::1", "[x]", "a\n", "\u0661.example", "x" * 256]
)
def test_anything_else_is_none(text: str) -> None:
    assert not is_host(text)
    assert not names_loopback(text)

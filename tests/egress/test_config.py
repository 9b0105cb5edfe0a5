"""Lists of patterns and of unix sockets, as a client sends them."""

from __future__ import annotations

import pytest

from execserver.egress.config import check_unix_sockets, domain_rules
from execserver.egress.patterns import ConfigError


def test_each_list_is_read() -> None:
    none: list[str] = []
    for lists in ((["a/b"],), (none, ["a/b"]), (none, none, ["a/b"])):
        with pytest.raises(ConfigError, match="unsupported domain pattern syntax"):
            domain_rules(*lists)


def test_an_allowed_unix_socket_has_an_absolute_path() -> None:
    check_unix_sockets({"/x": True, "y": False})
    with pytest.raises(ConfigError) as refused:
        check_unix_sockets({"/x": True, "y": True})
    assert str(refused.value) == (
        'invalid network.allow_unix_sockets[1]: expected a NUL-free absolute path for Linux, got "y"'
    )

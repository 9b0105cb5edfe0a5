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


def test_a_client_s_domains_are_bounded() -> None:
    hosts = [f"h{number}.example" for number in range(5001)]
    domain_rules(hosts[:5000], hosts[:5000])
    with pytest.raises(ConfigError, match="more than 10000 domains"):
        domain_rules(hosts[:5000], hosts[:4000], hosts[:1001])
    below = [f"*.{host}" for host in hosts[:501]]
    domain_rules(below[:500], below[:500], hosts)
    with pytest.raises(ConfigError, match="more than 1000 domains with a wildcard"):
        domain_rules(below, (), below[:500])


def test_an_allowed_unix_socket_has_an_absolute_path() -> None:
    check_unix_sockets({"/x": True, "y": False})
    with pytest.raises(ConfigError) as refused:
        check_unix_sockets({"/x": True, "y": True})
    assert str(refused.value) == (
        'invalid network.allow_unix_sockets[1]: expected a NUL-free absolute path for Linux, got "y"'
    )

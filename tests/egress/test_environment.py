"""The variables that lead a process to its proxy."""

from __future__ import annotations

from execserver.egress.environment import proxy_environment


def test_there_are_all_variables_of_the_contract() -> None:
    found = proxy_environment(1, 2, local_binding=False)
    assert len(found) == 34
    assert found[b"HTTPS_PROXY"] == found[b"npm_config_proxy"] == b"http://127.0.0.1:1"
    assert found[b"ALL_PROXY"] == found[b"ftp_proxy"] == b"socks5h://127.0.0.1:2"
    assert found[b"NO_PROXY"] == found[b"BUNDLE_NO_PROXY"] == b""
    assert found[b"CODEX_NETWORK_ALLOW_LOCAL_BINDING"] == b"0"


def test_without_socks_everything_goes_by_http() -> None:
    assert proxy_environment(1, None, local_binding=False)[b"all_proxy"] == b"http://127.0.0.1:1"


def test_with_local_binding_local_addresses_are_reached_directly() -> None:
    found = proxy_environment(1, 2, local_binding=True)
    assert found[b"no_proxy"] == b"localhost,127.0.0.1,::1,10.0.0.0/8,172.16.0.0/12,192.168.0.0/16"
    assert found[b"CODEX_NETWORK_ALLOW_LOCAL_BINDING"] == b"1"

"""Which variables of an environment are routed to proxies of the host, and what becomes of them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from execserver.sandbox.proxy.routes import KEYS, NO_ENDPOINTS, NO_VARIABLES, RouteError, find_routes


def rewritten(*env: bytes, ports: tuple[int, ...] = (4000, 4001, 4002)) -> list[bytes]:
    routes = find_routes(env)
    return routes.rewrite(env, ports[: len(routes.endpoints)])


@pytest.mark.parametrize(
    ("value", "endpoint", "after"),
    [
        (b"http://127.0.0.1:3128", (b"127.0.0.1", 3128), b"http://127.0.0.1:4000"),
        (b"localhost:3128", (b"127.0.0.1", 3128), b"127.0.0.1:4000"),
        (b"http://LOCALHOST", (b"127.0.0.1", 80), b"http://127.0.0.1:4000"),
        (b"https://127.0.0.1", (b"127.0.0.1", 443), b"https://127.0.0.1:4000"),
        (b"socks5h://127.0.0.1", (b"127.0.0.1", 1080), b"socks5h://127.0.0.1:4000"),
        (b"http://[::1]:8080/", (b"::1", 8080), b"http://127.0.0.1:4000/"),
        (b"http://[::1]", (b"::1", 80), b"http://127.0.0.1:4000"),
        (b"http://user:p%40w@localhost:1/x?y", (b"127.0.0.1", 1), b"http://user:p%40w@127.0.0.1:4000/x?y"),
        (b" localhost:5 ", (b"127.0.0.1", 5), b" 127.0.0.1:4000 "),
    ],
)
def test_a_proxy_on_loopback_is_replaced_and_the_rest_kept(
    value: bytes, endpoint: tuple[bytes, int], after: bytes
) -> None:
    env = (b"A=1", b"http_proxy=" + value)
    assert find_routes(env).endpoints == [endpoint]
    assert rewritten(*env) == [b"A=1", b"http_proxy=" + after]


@pytest.mark.parametrize(
    "value",
    [
        b"http://192.0.2.1:80",
        b"http://localhost.evil:80",
        b"http://localhost@192.0.2.1:80",
        b"http://127.0.0.1:0",
        b"http://127.0.0.1:65536",
        b"http://127.0.0.1:x",
        b"http://127.0.0.1:-1",
        b"http://[::1",
        b"http://[::1]8",
        b"ftp://localhost",
        b"://",
        b"x",
    ],
)
def test_what_is_no_proxy_on_loopback_is_no_endpoint(value: bytes) -> None:
    with pytest.raises(RouteError, match=NO_ENDPOINTS):
        find_routes([b"ALL_PROXY=" + value])


@pytest.mark.parametrize(
    "env", [[], [b"PATH=/bin"], [b"HTTP_PROXY="], [b"HTTP_PROXY=  "], [b"MY_HTTP_PROXY=x"]]
)
def test_no_variable_at_all_has_its_own_text(env: list[bytes]) -> None:
    with pytest.raises(RouteError, match=NO_VARIABLES):
        find_routes(env)


@pytest.mark.parametrize("key", sorted(KEYS))
def test_every_name_counts_in_any_case(key: bytes) -> None:
    for name in (key, key.lower(), key.title()):
        assert rewritten(name + b"=localhost:9") == [name + b"=127.0.0.1:4000"]


def test_equal_endpoints_share_a_listener_and_others_stay_as_they_are() -> None:
    env = [
        b"HTTP_PROXY=http://127.0.0.1:9",
        b"https_proxy=localhost:9",
        b"ALL_PROXY=http://192.0.2.1:1",
        b"PIP_PROXY=http://[::1]:9",
    ]
    assert find_routes(env).endpoints == [(b"127.0.0.1", 9), (b"::1", 9)]
    assert rewritten(*env) == [
        b"HTTP_PROXY=http://127.0.0.1:4000",
        b"https_proxy=127.0.0.1:4000",
        b"ALL_PROXY=http://192.0.2.1:1",
        b"PIP_PROXY=http://127.0.0.1:4001",
    ]


def test_the_number_of_endpoints_is_bounded() -> None:
    with pytest.raises(RouteError, match="at most 16"):
        find_routes([b"HTTP_PROXY=localhost:%d" % port for port in range(1, 18)])


@given(st.lists(st.binary(max_size=40)))
def test_any_value_is_an_endpoint_or_none(values: list[bytes]) -> None:
    env = [b"HTTP_PROXY=" + value for value in values]
    try:
        routes = find_routes(env)
    except RouteError:
        return
    after = routes.rewrite(env, range(1, len(routes.endpoints) + 1))
    assert len(after) == len(env)
    for route in routes.routes:
        assert after[route.index].startswith(b"HTTP_PROXY=")
        assert b"127.0.0.1:" in after[route.index]

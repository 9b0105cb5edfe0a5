"""`http/request` keeps the load balancer's cookies of ChatGPT's hosts, as recorded from 0.169.0."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from execserver.services.http.service import HttpService
from execserver.settings import Settings
from tests.remote.standin import Asked, Told
from tests.support.http_peer import params
from tests.support.led_hosts import LedHosts

NAMES = ("chatgpt.com", "a.chatgpt.com", "api.openai.com")


class Hosts:
    """The hosts, and one process's service."""

    def __init__(self, folder: Path) -> None:
        self.told = Told(200, b"ok", (("set-cookie", "__cflb=west; Path=/"), ("set-cookie", "login=x")))
        self.led = LedHosts(folder, NAMES, self._answer)
        self.service = HttpService(Settings(), self.led.environ)

    def _answer(self, asked: Asked) -> Told:
        return self.told

    def ask(self, host: str = "chatgpt.com", **members: object) -> str | None:
        """Make a request, and return the cookies it had."""
        answer = self.service.fetch(self.service.prepare(params(f"https://{host}/x", **members)))
        answer.exchange.close()
        return self.led.server.asked[-1].header("cookie")


@pytest.fixture
def hosts(tmp_path: Path) -> Iterator[Hosts]:
    hosts = Hosts(tmp_path)
    yield hosts
    hosts.led.close()


def test_the_next_request_has_the_cookie_and_no_other_host_gets_it(hosts: Hosts) -> None:
    assert hosts.ask() is None
    assert hosts.ask(method="POST", body_base64=b"b") == "__cflb=west"
    assert hosts.ask("a.chatgpt.com") is None
    assert hosts.ask("api.openai.com") is None
    assert hosts.led.tunnels == [f"{host}:443" for host in ("chatgpt.com", *NAMES)]


def test_a_clients_own_cookies_are_left_alone(hosts: Hosts) -> None:
    hosts.ask()
    assert hosts.ask(headers=[("Cookie", "mine=1")]) == "mine=1"
    assert hosts.ask() == "__cflb=west"


def test_a_redirect_elsewhere_does_not_carry_them(hosts: Hosts) -> None:
    hosts.ask()
    hosts.told = Told(302, b"", (("location", "https://api.openai.com/x"),))
    answered = iter([hosts.told, Told(200)])
    hosts._answer = lambda asked: next(answered)  # type: ignore[method-assign]
    hosts.led.server.answer = hosts._answer
    assert hosts.ask() is None
    assert [asked.header("cookie") for asked in hosts.led.server.asked] == [None, "__cflb=west", None]


def test_another_process_has_its_own_jar(hosts: Hosts) -> None:
    hosts.ask()
    hosts.service = HttpService(Settings(), hosts.led.environ)
    assert hosts.ask() is None

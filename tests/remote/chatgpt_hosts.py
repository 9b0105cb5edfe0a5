"""The public hosts of Agent Identity on loopback."""

from __future__ import annotations

from pathlib import Path

from tests.remote.agents import AuthApi, Issuer
from tests.remote.standin import Asked, Told
from tests.support.led_hosts import LedHosts

NAMES = ("chatgpt.com", "auth.openai.com")


class ChatGptHosts(LedHosts):
    """Publishes keys and registers tasks under the real names."""

    def __init__(self, folder: Path, issuer: Issuer) -> None:
        self._api = AuthApi(issuer)
        super().__init__(folder, NAMES, self._answer)

    def _answer(self, asked: Asked) -> Told:
        return self._api(asked._replace(path=asked.path.replace("/api/accounts/", "/api/")))

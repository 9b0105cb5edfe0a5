"""Where a credential is looked for: a home folder, an environment, and a stand-in for the auth API."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from execserver.remote.auth.endpoints import Endpoints
from execserver.remote.auth.kinds import Auth
from execserver.remote.auth.resolve import resolve_auth
from execserver.remote.errors import SignInError
from tests.remote.agents import b64url
from tests.remote.standin import Asked, StandIn, Told

NOW = 1_782_129_600.0


def jwt(payload: dict[str, Any]) -> str:
    """Return a token with these claims, which nobody has signed."""
    return f"aaa.{b64url(json.dumps(payload).encode())}.ccc"


FEDRAMP = jwt({"https://api.openai.com/auth": {"chatgpt_account_is_fedramp": True}})


class Api:
    """Answers as the auth API does for tokens that stay."""

    def __init__(self) -> None:
        self.whoami = Told(
            200, {"chatgpt_account_id": "acct-9", "chatgpt_account_is_fedramp": True, "email": "x"}
        )
        self.refresh = Told(200, {"access_token": "new", "refresh_token": "r2", "id_token": jwt({})})

    def __call__(self, asked: Asked) -> Told:
        if asked.path == "/token":
            return self.refresh
        assert asked.path == "/v1/user-auth-credential/whoami"
        return self.whoami


class Scene:
    """A home folder, an environment and an auth API."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.api = Api()
        self.server = StandIn(self.api)
        self.environ: dict[str, str] = {}
        self.config: dict[str, object] = {}

    def write(self, **document: object) -> Path:
        """Write `auth.json`."""
        path = self.home / "auth.json"
        path.write_text(json.dumps(document))
        path.chmod(0o644)
        return path

    def resolve(self, *, flag: bool = False) -> Auth:
        """Choose a credential."""
        url = self.server.url
        return resolve_auth(
            self.environ,
            str(self.home),
            self.config,
            flag,
            endpoints=Endpoints(url, f"{url}/token", "client-1"),
        )

    def headers(self) -> list[tuple[str, str]]:
        """Return the headers of the next request."""
        return self.resolve().headers()

    def refused(self, *, flag: bool = False) -> SignInError:
        """Return why there is none."""
        with pytest.raises(SignInError) as refused:
            self.resolve(flag=flag)
        return refused.value

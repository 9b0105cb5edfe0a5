"""`environment/*` at the method table: ready-made answers."""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast

from execserver.handlers.context import Call
from execserver.handlers.environment import info, status
from execserver.protocol.session import NoParams
from execserver.services.machine.environment import EnvironmentService


def test_answers_are_made_once() -> None:
    service = EnvironmentService({}, find_login_shell=lambda _: "/bin/sh")
    call = cast(Call, SimpleNamespace(services=SimpleNamespace(environment=service)))
    assert info(call, NoParams()) is info(call, NoParams()) is service.info
    assert status(call, NoParams()) is service.status

"""Name servers that do not answer hold up the process that asked them, and no other one."""

from __future__ import annotations

import gevent
import pytest
from gevent.event import Event

from execserver.http_client.connect import Address
from execserver.services.egress import judging
from execserver.services.egress.judging import MAX_LOOK_UPS
from tests.support.egress_scene import Names, get, rules, scene
from tests.support.waiting import wait_until


class Silent(Names):
    """Answers nothing about some names until the test says so."""

    def __init__(self) -> None:
        super().__init__(quick_example=[["10.0.0.1"]])
        self.over = Event()
        self.open = 0

    def addresses(self, host: str, port: int) -> list[Address]:
        """See `Names`."""
        if host.startswith("slow"):
            self.asked.append(host)
            self.open += 1
            self.over.wait()
            self.open -= 1
            raise OSError(-2, "Name or service not known")
        return super().addresses(host, port)


def test_one_process_has_a_few_look_ups_at_a_time_also_when_nobody_waits_for_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(judging, "LOOKUP_S", 0.1)
    names = Silent()
    with scene(rules("*"), names) as here:
        for number in range(2 * MAX_LOOK_UPS):
            assert here.status(get(f"slow{number}.example")) == 403
        assert names.open == len(names.asked) == MAX_LOOK_UPS
        names.over.set()
        wait_until(lambda: names.open == 0, pause=gevent.sleep)
        assert here.status(get("quick.example")) == 403
        assert here.reasons == ["not_allowed_local"] * (2 * MAX_LOOK_UPS + 1)
        assert names.asked[-1] == "quick.example"

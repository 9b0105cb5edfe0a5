"""The parts of a client are there, under all their names, as soon as somebody asks."""

from __future__ import annotations

from typing import Any

from execserver.client.parts import _PARTS, Parts


def made() -> Any:
    parts: Any = Parts.__new__(Parts)
    parts._session = parts._gate = None
    parts._router = type("Router", (), {"streams": {}})
    return parts


def test_every_name_that_a_part_brings_loads_that_part() -> None:
    for names, bind in _PARTS:
        parts = made()
        before = set(vars(parts))
        bind(parts)
        assert set(vars(parts)) - before == names
        for name in names:
            assert callable(getattr(made(), name)) or name in ("sessions", "files")


def test_a_name_that_there_is_not_is_missing_as_elsewhere() -> None:
    assert not hasattr(made(), "no_such_method")

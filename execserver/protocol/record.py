"""The base of every params and result record."""

from __future__ import annotations

import msgspec


class Record(msgspec.Struct, kw_only=True, rename="camel", frozen=True):
    """A typed JSON object: snake_case here, camelCase on the wire, unknown members ignored.

    Members are written in declaration order and `None` is written as `null`, as the contract asks.
    """

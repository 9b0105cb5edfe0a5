"""The version of a relay's state counts up with what is in it."""

from __future__ import annotations

import hashlib
import inspect

import msgspec

from execserver.handover import relay_records
from execserver.handover.records import STATE_VERSION

# Of RELAY_STATE_VERSION; who changes a record counts that up, and puts the new digest here.
DIGESTS = {1001: "49115624e375124429f3b621ebc1c5c68fdd44d912c9410e9a36bc1fcdff6a2d"}


def described() -> str:
    """Return every record with its members and their types, those of a server that are used as well."""
    return "\n".join(
        f"{name}({', '.join(f'{field.name}: {field.type}' for field in msgspec.structs.fields(kind))})"
        for name, kind in sorted(vars(relay_records).items())
        if inspect.isclass(kind) and issubclass(kind, msgspec.Struct)
    )


def test_the_state_has_the_version_of_its_records() -> None:
    assert "PackedFrames(begun:" in described()
    digest = hashlib.sha256(described().encode()).hexdigest()
    assert DIGESTS[relay_records.RELAY_STATE_VERSION] == digest


def test_no_state_of_a_server_is_taken_for_one_of_a_relay() -> None:
    assert STATE_VERSION < 1001 <= relay_records.RELAY_STATE_VERSION

"""The version of the state counts up with what is in it."""

from __future__ import annotations

import hashlib
import inspect

import msgspec

from execserver.handover import records
from execserver.zygote.records import Exited, Release, Signalled, SignalRequest, encode

# Of STATE_VERSION; who changes a record counts that up, and puts the new digest here.
DIGESTS = {7: "8ed44dc9a2b8a54f63cd7b7acc84fe24feb8df21cd88fea1dcc8c52116ab144b"}


def described() -> str:
    """Return every record with its members and their types, and the records of children as bytes."""
    found = [
        f"{name}({', '.join(f'{field.name}: {field.type}' for field in msgspec.structs.fields(kind))})"
        for name, kind in sorted(vars(records).items())
        if inspect.isclass(kind) and issubclass(kind, msgspec.Struct)
    ]
    spoken = [SignalRequest(1, 2, 9), Signalled(1, True, 3), Exited(2, 77, 256, True), Release()]
    return "\n".join([*found, *(encode(record).hex() for record in spoken)])


def test_the_state_has_the_version_of_its_records() -> None:
    digest = hashlib.sha256(described().encode()).hexdigest()
    assert DIGESTS[records.STATE_VERSION] == digest

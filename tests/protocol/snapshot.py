"""The JSON schema of every record, kept in `schema.json`: a change of the wire shows as a change there.

`python -m tests.protocol.snapshot` writes it anew.
"""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import msgspec

from execserver.protocol.paths import PathUri
from execserver.protocol.record import Base64, Record
from execserver.protocol.sandbox import FileSystemSandboxContext

FILE = Path(__file__).with_name("schema.json")
MODULES = (
    "batches",
    "changes",
    "discovery",
    "environment",
    "files",
    "http",
    "legacy",
    "network",
    "ports",
    "process",
    "resource_limits",
    "session",
    "trees",
    "file_watches",
    "watching",
)


def all_records() -> list[type[Record]]:
    """Return every record of the protocol, by name."""
    modules = [importlib.import_module(f"execserver.protocol.{name}") for name in MODULES]
    found = {
        value
        for module in modules
        for value in vars(module).values()
        if isinstance(value, type) and issubclass(value, Record) and value is not Record
    }
    return sorted(found, key=lambda record: record.__name__)


def schema() -> str:
    """Return the schema as the snapshot holds it."""
    _, components = msgspec.json.schema_components(all_records(), schema_hook=_special)
    return msgspec.json.format(msgspec.json.encode(components, order="sorted"), indent=1).decode() + "\n"


def _special(kind: type) -> dict[str, Any]:
    return {
        PathUri: {"type": "string", "format": "path URI"},
        Base64: {"type": "string", "contentEncoding": "base64"},
        FileSystemSandboxContext: {"type": "object", "title": "FileSystemSandboxContext"},
    }[kind]


if __name__ == "__main__":
    FILE.write_text(schema())

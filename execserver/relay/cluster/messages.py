"""What nodes tell each other through the engine: three messages to one node, each a line of words.

A message may be lost, come late, or come twice.  Each names what it is about exactly, so that a late one
changes nothing; `residents` says what makes a lost one good.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from execserver.relay.cluster.presence import Presence, presence_of

_ENVIRONMENT_ID = re.compile(r"[A-Za-z0-9_-]{1,128}")
_MAX_CHARACTERS = 512


class Moved(NamedTuple):
    """The executor connected to another node; `before` is its presence at the node that is told."""

    environment_id: str
    before: Presence


class Registered(NamedTuple):
    """A registration replaced the one of the executor that is connected here."""

    environment_id: str
    registration_id: str
    taken_over: bool  # by another key


class Recall(NamedTuple):
    """Clients do not reach this node: its executor shall come to where both reach the same one."""

    environment_id: str
    presence: Presence


Message = Moved | Registered | Recall


def encode(message: Message) -> str:
    """Return the line of a message."""
    if isinstance(message, Moved):
        return f"moved {message.environment_id} {message.before.text}"
    if isinstance(message, Recall):
        return f"recall {message.environment_id} {message.presence.text}"
    how = "taken_over" if message.taken_over else "again"
    return f"registered {message.environment_id} {message.registration_id} {how}"


def decode(line: str) -> Message | None:
    """Return the message of a line; None for what is no message."""
    words = line.split(" ") if len(line) <= _MAX_CHARACTERS else []
    if len(words) < 3 or not _ENVIRONMENT_ID.fullmatch(words[1]):
        return None
    kind, environment_id, *rest = words
    if kind == "registered" and len(rest) == 2 and rest[1] in ("again", "taken_over"):
        return Registered(environment_id, rest[0], rest[1] == "taken_over")
    presence = presence_of(rest[0]) if len(rest) == 1 else None
    if presence is None:
        return None
    if kind == "moved":
        return Moved(environment_id, presence)
    return Recall(environment_id, presence) if kind == "recall" else None

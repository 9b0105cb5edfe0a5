"""The table of places where our server deliberately answers otherwise than the recorded one.

`tests/transcripts/differences.toml` holds, for each, the reason and the answer expected of ours. A replay
asks this table before it calls a mismatch a failure; an entry that no replay of its transcript needed is a
failure itself, so the table can't outlive the difference.
"""

from __future__ import annotations

import json
import tomllib
from dataclasses import dataclass
from typing import Any

from tests.support.peer import Json
from tests.support.transcript import FOLDER


@dataclass(frozen=True)
class ReplyDifference:
    """One request that ours answers with `reply` (None: the same as recorded once `left_out`)."""

    key: str
    reason: str
    reply: Json


@dataclass(frozen=True)
class AddedMember:
    """A member that ours adds to every result or notification of `method`."""

    method: str
    member: str
    reason: str


class Differences:
    """The entries for one transcript, and which of them were needed."""

    def __init__(self, transcript: str, table: dict[str, Any]) -> None:
        """Keep what concerns this transcript."""
        self.is_empty = not table
        self.transcript = transcript
        self._replies: dict[str, ReplyDifference] = {}
        for entry in table.get("reply", []):
            if entry["transcript"] == transcript:
                for key in entry["keys"]:
                    self._replies[key] = ReplyDifference(key, entry["reason"], json.loads(entry["reply"]))
        self._left_out = {
            key: entry["reason"]
            for entry in table.get("left_out", [])
            if entry["transcript"] == transcript
            for key in entry["keys"]
        }
        self._added = [
            (AddedMember(e["method"], e["member"], e["reason"]), transcript in e["shown_in"])
            for e in table.get("added_member", [])
        ]
        self._orders = {
            (entry["later"], entry["earlier"])
            for entry in table.get("overtakes", [])
            if entry["transcript"] == transcript
        }
        self._close_codes = {
            key: int(entry["code"])
            for entry in table.get("close_frame", [])
            if entry["transcript"] == transcript
            for key in entry["keys"]
        }
        self._outputs = {
            entry["process"]: entry["text"]
            for entry in table.get("output", [])
            if entry["transcript"] == transcript
        }
        self.used: set[object] = set()

    @classmethod
    def of_ours(cls, transcript: str) -> Differences:
        """Read the table for our server."""
        return cls(transcript, tomllib.loads((FOLDER / "differences.toml").read_text(encoding="utf-8")))

    @classmethod
    def none(cls, transcript: str) -> Differences:
        """Return no differences: for the server that the transcript was recorded from."""
        return cls(transcript, {})

    def reply(self, key: str) -> Json | None:
        """Return the reply expected of ours for this request, or None when it is the recorded one."""
        entry = self._replies.get(key)
        if entry is None:
            return None
        self.used.add(key)
        return entry.reply

    def output(self, process: str) -> str | None:
        """Return what ours must print for `connection:process`; None: what was recorded."""
        text = self._outputs.get(process)
        if text is not None:
            self.used.add(("output", process))
        return text

    def leaves_out(self, key: str) -> bool:
        """Tell whether this request is not replayed against ours."""
        if key in self._left_out:
            self.used.add(key)
        return key in self._left_out

    def without_added(
        self, method: str, members: dict[str, Json], expected: dict[str, Json]
    ) -> dict[str, Json]:
        """Return the members without those that ours adds by policy and the recording lacks."""
        kept = dict(members)
        for rule, _ in self._added:
            if rule.method == method and rule.member in kept and rule.member not in expected:
                del kept[rule.member]
                self.used.add(rule)
        return kept

    def may_overtake(self, later: str, earlier: str) -> bool:
        """Tell whether the reply to the later request may come first."""
        allowed = (later, earlier) in self._orders
        if allowed:
            self.used.add((later, earlier))
        return allowed

    def close_code(self, conn: str) -> int | None:
        """Return the code of the Close frame that ours ends this connection with; None for no Close frame."""
        code = self._close_codes.get(conn)
        if code is not None:
            self.used.add(("close", conn))
        return code

    def unused(self) -> list[str]:
        """Name the entries of this transcript that nothing needed."""
        entries: list[object] = [*self._replies, *self._left_out, *self._orders]
        entries += [("close", conn) for conn in self._close_codes]
        entries += [("output", process) for process in self._outputs]
        entries += [rule for rule, shown in self._added if shown]
        return [
            f"differences.toml: entry {entry} is not needed" for entry in entries if entry not in self.used
        ]

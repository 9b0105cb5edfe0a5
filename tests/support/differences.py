"""The table of places where our server deliberately answers otherwise than the recorded one.

`tests/transcripts/differences.toml` holds, for each, the reason and the answer expected of ours. A replay
asks this table before it calls a mismatch a failure; an entry that no replay of its transcript needed is a
failure itself, so the table can't outlive the difference.
"""

from __future__ import annotations

import json
import re
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
            if transcript in (entry["transcript"], *entry.get("and_in", ())):
                for key in entry["keys"]:
                    self._replies[key] = ReplyDifference(key, entry["reason"], json.loads(entry["reply"]))
        self._left_out = {
            key: entry["reason"]
            for entry in table.get("left_out", [])
            if entry["transcript"] == transcript
            for key in entry["keys"]
        }
        self._added = [
            (AddedMember(e["method"], member, e["reason"]), transcript in e["shown_in"])
            for e in table.get("added_member", [])
            for member in e.get("members", [e.get("member")])
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
            entry["process"]: entry["text"].removeprefix("\n")
            for entry in table.get("output", [])
            if entry["transcript"] == transcript
        }
        self._exit_codes = {
            entry["process"]: int(entry["exit_code"])
            for entry in table.get("output", [])
            if entry["transcript"] == transcript and "exit_code" in entry
        }
        decoding = table.get("decode_errors", {})
        self._suffix = decoding.get("suffix")
        self._suffix_shown = transcript in decoding.get("shown_in", [])
        self._error_data_shown = transcript in table.get("error_data", {}).get("shown_in", [])
        self._error_data = "error_data" in table
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

    def plain_result(self, result: Json, expected: Json) -> Json:
        """Return a result without any member that ours adds to some method's."""
        members = {rule.member for rule, _ in self._added}
        if not isinstance(result, dict) or not isinstance(expected, dict):
            return result
        return {name: value for name, value in result.items() if name in expected or name not in members}

    def decode_error(self, expected: Json, live: Json) -> bool:
        """Tell whether two error replies differ only by the place that ours names behind the text."""
        if self._suffix is None or expected.get("error", {}).get("code") != -32602 or "error" not in live:
            return False
        text = re.escape(expected["error"]["message"]) + self._suffix
        same = re.fullmatch(text, live["error"]["message"]) and live["error"]["code"] == -32602
        if same:
            self.used.add("decode_errors")
        return bool(same) and live["id"] == expected["id"]

    def output(self, process: str) -> str | None:
        """Return what ours must print for `connection:process`; None: what was recorded."""
        text = self._outputs.get(process)
        if text is not None:
            self.used.add(("output", process))
        return text

    def exit_code(self, process: str, recorded: int) -> int:
        """Return the exit code that ours must report for `connection:process`."""
        return self._exit_codes.get(process, recorded)

    def reply_id(self, key: str, recorded: Json) -> Json:
        """Return the id that ours answers with: the recorded one, but for what it can't parse."""
        entry = self._replies.get(key)
        return recorded if entry is None else entry.reply.get("id", recorded)

    def leaves_out_line(self, key: str, number: int) -> bool:
        """Tell whether this line, or the request it belongs to, is not replayed against ours."""
        return self.leaves_out(key) or self.leaves_out(f"line {number}")

    def leaves_out(self, key: str) -> bool:
        """Tell whether this request, process or line is not replayed against ours."""
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

    def without_error_data(self, error: dict[str, Json], expected: Json) -> dict[str, Json]:
        """Return an error without the `data` in which ours explains it, if the recorded one has none."""
        recorded = expected.get("error", {})
        if not self._error_data or "data" not in error or "data" in recorded:
            return error
        self.used.add("error_data")
        return {name: value for name, value in error.items() if name != "data"}

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
        entries += ["decode_errors"] if self._suffix_shown else []
        entries += ["error_data"] if self._error_data_shown else []
        entries += [rule for rule, shown in self._added if shown]
        return [
            f"differences.toml: entry {entry} is not needed" for entry in entries if entry not in self.used
        ]

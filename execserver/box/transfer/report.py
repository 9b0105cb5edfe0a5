"""What a sync tells: what it is about to do, what failed, and how much it was; for people, or JSON by line.

Names are shown escaped to people; in JSON, bytes that are no UTF-8 are lone surrogates (U+DC80 and on).
"""

from __future__ import annotations

import os
from typing import Final

from execserver.box.shown import shown
from execserver.box.transfer.comparing import Plan
from execserver.box.transfer.progress import Progress, amount
from execserver.box.trees.nodes import Tree
from execserver.leaving import put, write

_MAX_TOLD: Final = 200  # failures of one sync that are told one by one


class Report:
    """Takes what happens, and writes it; counts for the summary.

    With `dry` nothing is done, and with `lines` (of JSON) or `dry` every step is told.  Progress is shown
    unless `quiet`, the summary unless `quiet` or `brief`.  `top` is how a person has named the source.
    """

    def __init__(self, top: str, *, lines: bool, dry: bool, quiet: bool, brief: bool = False) -> None:
        self._top = os.fsencode(top)
        self._brief = brief
        self._lines = lines
        self._dry = dry
        self._quiet = quiet
        self._progress = Progress(0, quiet=True)
        self._files = self._bytes = self._removed = 0
        self.failures = 0
        self.failed_names: set[bytes] = set()  # what is not in the target as it is in the source

    def plan(self, plan: Plan, source: Tree) -> None:
        """Tell the steps of a plan, and begin to count."""
        self._files = self._bytes = self._removed = self.failures = 0
        self.failed_names.clear()
        total = sum(source[name].size for name in plan.files)
        self._progress = Progress(total, self._quiet or self._lines or self._dry)
        if self._lines or self._dry:
            new = set(plan.folders)
            for name in (*plan.cleared, *plan.removals):
                self._step("delete", name)
            for name in plan.folders:
                self._step("mkdir", name)
            for name in plan.files:
                self._step("copy", name, size=source[name].size)
            for name in plan.links:
                self._step("link", name, target=_text(source[name].target))
            for name in (*plan.stamps, *(each for each in reversed(plan.settled) if each not in new)):
                self._step("set", name)
        for name in plan.refused:
            self.failed(name, "is a folder on one side only; it stays as it is")

    def copied(self, name: bytes, size: int) -> None:
        """Count a file or link."""
        self._files += 1
        self._bytes += size

    def passed(self, size: int) -> None:
        """Show progress."""
        self._progress.count(size)

    def removed(self, name: bytes) -> None:
        """Count what is gone."""
        self._removed += 1

    def failed(self, name: bytes, text: str) -> None:
        """Tell and count what could not be done; of a folder that was not made only once."""
        if name in self.failed_names:
            return
        self.failures += 1
        self.failed_names.add(name)
        if self._lines:
            write(1, _line({"action": "failed", "path": _text(name), "error": text}))
        elif self.failures <= _MAX_TOLD:
            self._progress.hide()
            write(2, f"execserver: {shown(name or self._top, 300)}: {shown(text, 300)}\n")

    def gone(self, name: bytes) -> None:
        """Note what was not copied, and is nobody's failure."""
        self.failed_names.add(name)

    def say(self, text: str) -> None:
        """Tell a person something."""
        self._progress.hide()
        write(2, f"execserver: {text}\n")

    def complain(self, text: str, cure: str) -> None:
        """Tell of a failure that belongs to no name, and what to do."""
        self.failures += 1
        self.say(f"{text}\n  What to do: {cure}")

    def stop(self) -> None:
        """Show no progress any more: everything is done, or nothing more will be."""
        self._progress.close()

    def finish(self, plan: Plan, source: Tree) -> None:
        """Tell how much it was; with `dry`, how much it would be."""
        files, size, removed = self._files, self._bytes, self._removed
        if self._dry:
            files = len(plan.files) + len(plan.links)
            size = sum(source[name].size for name in plan.files)
            removed = len(plan.cleared) + len(plan.removals)
        if self.failures > _MAX_TOLD and not self._lines:
            self.say(f"... and {self.failures - _MAX_TOLD} more")
        if self._lines:
            counts = {"files": files, "bytes": size, "equal": plan.equal, "deleted": removed}
            put(_line({"action": "summary", **counts, "failed": self.failures, "dry_run": self._dry}))
        elif not (self._quiet or self._brief):
            would = "would be " if self._dry else ""
            more = f"; {self.failures} failed" if self.failures else ""
            put(
                f"{files} {'file' if files == 1 else 'files'} ({amount(size)}) {would}copied, "
                f"{removed} {would}deleted; {plan.equal} were equal{more}\n",
            )

    def _step(self, action: str, name: bytes, **more: object) -> None:
        if self._lines:
            put(_line({"action": action, "path": _text(name), **more}))
            return
        text = f"{action:<6}  {shown(name, 4096) or '.'}"
        if action == "link":
            text += f" -> {shown(str(more['target']), 4096)}"
        put(text + "\n")


def _line(record: dict[str, object]) -> str:
    import json  # late: for programs only

    return json.dumps(record) + "\n"


def _text(name: bytes) -> str:
    return name.decode("utf-8", "surrogateescape")

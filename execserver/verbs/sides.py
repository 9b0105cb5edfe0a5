"""Operands of which one side is on a box: NAME:PATH, or :PATH on the box of --box."""

from __future__ import annotations

from execserver.arguments import Mistake, Parsed, Program
from execserver.verbs.boxed import remote

TYPE_CHECKING = False
if TYPE_CHECKING:
    import re
    from collections.abc import Sequence


class Sides:
    """Sources and a target: `up` if the target is on the box; `box` is its name, if one was given."""

    def __init__(self, found: Program, parsed: Parsed) -> None:
        """Raises Leave unless exactly one side is on a box, and that is one box."""
        if len(parsed.operands) < 2:
            raise found.mistaken(Mistake("a source and a target are needed"))
        if "" in parsed.operands:  # a variable that is not set; the folder one is in is a dot
            raise found.mistaken(Mistake("a path is empty"))
        *sources, target = (remote(operand) or operand for operand in parsed.operands)
        boxed = [each for each in (*sources, target) if not isinstance(each, str)]
        self.up = not isinstance(target, str)
        if self.up == any(not isinstance(each, str) for each in sources) or not boxed:
            raise found.mistaken(Mistake("one side must be on a box (NAME:PATH), the other one here"))
        if (not self.up and len(boxed) != len(sources)) or len({each[1] for each in boxed}) != 1:
            raise found.mistaken(Mistake("all sources must be on the same side, and on the same box"))
        self.box = boxed[0][1] if boxed[0][1] is not None else parsed.options.get("--box")
        self.sources: Sequence[str] = [_path(each) for each in sources]
        self.target = _path(target)


def _path(operand: str | re.Match[str]) -> str:
    """Return a path here as it is; one on a box relative to the home, in which commands start there."""
    if isinstance(operand, str):
        return operand
    path: str = operand[2]
    return "." if path in ("", "~") else path.removeprefix("~/")

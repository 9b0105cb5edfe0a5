"""The snippets of `sdk/adapters.md`, run as they stand there: for tests within a framework's environment.

Of a snippet only the name of the box and the folder on it are put in; what it takes for granted is given.
"""

from __future__ import annotations

import ast
import inspect
import re
from pathlib import Path
from typing import Any

PAGE = Path(__file__).parents[3] / "sdk" / "adapters.md"


def snippet(heading: str, box: str, folder: str) -> str:
    """Return the snippet below a heading, for a box and a folder there.  Raises LookupError."""
    for section in re.split(r"^## ", PAGE.read_text(), flags=re.MULTILINE)[1:]:
        if section.partition("\n")[0] == heading:
            found = re.search(r"^```py\n(.*?)^```$", section, re.MULTILINE | re.DOTALL)
            if found:
                return found[1].replace('"dev"', repr(box)).replace('"/src/project"', repr(folder))
    raise LookupError(f"no snippet below {heading!r} in {PAGE.name}")


async def run_snippet(code: str, **names: Any) -> dict[str, Any]:
    """Run a snippet, which may await, with these names; returns all names behind it."""
    module = compile(code, PAGE.name, "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    done = eval(module, names)  # the page is ours
    if inspect.isawaitable(done):
        await done
    return names

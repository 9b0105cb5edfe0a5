"""Which modules of `execserver` the SDK uses, directly or through others, read from the source.

Imports that only a type checker follows count, too: without them the installed package would lose its types.
A package whose `__init__.py` loads its names on demand is entered without them; the wheel carries an empty
one in its place.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

SHARED = "execserver"
SDK = "sdk"


class Source(NamedTuple):
    """One module: its dotted name, its file, its syntax tree."""

    name: str
    path: Path
    tree: ast.Module

    @property
    def is_lazy(self) -> bool:
        """Whether this is a package that loads its names when they are asked for."""
        return self.path.name == "__init__.py" and any(
            isinstance(each, ast.FunctionDef) and each.name == "__getattr__" for each in self.tree.body
        )

    def imports(self) -> Iterator[tuple[str, int]]:
        """Yield every imported module, or name of a module, with its line."""
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Import):
                yield from ((alias.name, node.lineno) for alias in node.names)
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                yield node.module, node.lineno
                yield from ((f"{node.module}.{alias.name}", node.lineno) for alias in node.names)


def sources(root: Path, package: str) -> list[Source]:
    """Return the modules of a package of the SDK."""
    folder = root / SDK
    return [read(path, folder) for path in sorted((folder / package).rglob("*.py"))]


def read(path: Path, folder: Path) -> Source:
    """Read one module of those below a folder."""
    name = ".".join(path.relative_to(folder).with_suffix("").parts).removesuffix(".__init__")
    return Source(name, path, ast.parse(path.read_text(), str(path)))


def closure(root: Path, starts: Iterable[Source]) -> dict[str, Source]:
    """Return the modules of `execserver` that some modules reach, with the packages they lie in."""
    found: dict[str, Source] = {}
    waiting = list(starts)
    while waiting:
        source = waiting.pop()
        for name, _ in () if source.is_lazy else source.imports():
            for each in _with_packages(name):
                path = _file(root, each)
                if path is not None and each not in found:
                    found[each] = read(path, root)
                    waiting.append(found[each])
    return dict(sorted(found.items()))


def _with_packages(name: str) -> Iterator[str]:
    parts = name.split(".")
    if parts[0] == SHARED:
        yield from (".".join(parts[: count + 1]) for count in range(len(parts)))


def _file(root: Path, name: str) -> Path | None:
    base = root.joinpath(*name.split("."))
    candidates = (base / "__init__.py", base.with_suffix(".py"))
    return next((path for path in candidates if path.is_file()), None)

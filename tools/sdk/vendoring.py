"""The modules that a package of the SDK shares with the server, as copies that it carries.

`execserver.x` becomes `execserver_client._shared.x`, in the copies and in the SDK's own modules: where the
syntax tree has an import, and nowhere else.  A package that loads its names on demand is carried empty.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from tools.problems import Problem
from tools.sdk.closure import SHARED, Source, closure, sources

PACKAGES = ("execserver_client", "execserver_adapters", "pytest_execserver")
CARRIED = "execserver_client._shared"
_ROOT_NOTE = "Copies of the modules that this package has in common with the server `execserver`."


def carried(root: Path) -> dict[str, bytes]:
    """Return the copies: the path of each in the wheel, and its bytes."""
    starts = [source for package in PACKAGES for source in sources(root, package)]
    found = {}
    for source in closure(root, starts).values():
        path = source.path.relative_to(root / SHARED)
        found[f"{CARRIED.replace('.', '/')}/{path}"] = _copy(source)
    return found


def own(root: Path, package: str) -> dict[str, bytes]:
    """Return the modules and data of a package of the SDK as its wheel has them."""
    folder = root / "sdk"
    found = {str(source.path.relative_to(folder)): rewritten(source) for source in sources(root, package)}
    found[f"{package}/py.typed"] = b""
    return found


def rewritten(source: Source) -> bytes:
    """Return a module's source with its imports of the shared modules led to the copies.

    Raises Problem for `import execserver.x` without a name of its own, which binds `execserver`.
    """
    lines = source.path.read_bytes().splitlines(keepends=True)
    for line, column in sorted(_places(source), reverse=True):
        text = lines[line - 1]
        start = text.index(SHARED.encode(), column)
        lines[line - 1] = text[:start] + CARRIED.encode() + text[start + len(SHARED) :]
    return b"".join(lines)


def _copy(source: Source) -> bytes:
    if source.name == SHARED:
        return f'"""{_ROOT_NOTE}"""\n'.encode()
    if source.is_lazy:
        return f'"""The modules of `{source.name}` that are carried along."""\n'.encode()
    return rewritten(source)


def _places(source: Source) -> Iterator[tuple[int, int]]:
    """Yield line and column (in bytes) of each import of a shared module; its name begins there or after."""
    for node in ast.walk(source.tree):
        if isinstance(node, ast.ImportFrom) and not node.level and _is_shared(node.module or ""):
            yield node.lineno, node.col_offset
        elif isinstance(node, ast.Import):
            for alias in node.names:
                if not _is_shared(alias.name):
                    continue
                if alias.asname is None:
                    raise Problem(
                        f"{source.path}:{alias.lineno} imports {alias.name} without a name of its own",
                        f"write `from {alias.name.rpartition('.')[0]} import ...`",
                    )
                yield alias.lineno, alias.col_offset


def _is_shared(name: str) -> bool:
    return name == SHARED or name.startswith(f"{SHARED}.")

"""The project's source as data: its modules and what each of them imports.

A syntax tree takes far more room than its text, and whoever holds all of them makes every fork of the tests'
process dear.  So trees are read when they are asked for, and kept until `forget_trees`.
"""

from __future__ import annotations

import ast
import functools
import gc
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
SDK = "sdk"  # a folder of packages, none itself


class Import(NamedTuple):
    """One import: the module, its line, and whether the program runs without it.

    That is so where only the type checker sees it, and where an ImportError is caught.
    """

    module: str
    line: int
    optional: bool


class Module(NamedTuple):
    """One file of the product: its dotted name, path, syntax tree and imports."""

    name: str
    path: Path

    @property
    def tree(self) -> ast.Module:
        """Its syntax tree, read once until the trees are forgotten."""
        return _kept_tree(self.path)

    def imports(self) -> Sequence[Import]:
        """Return every import, also those inside functions."""
        return _imports_of(self.path)


def forget_trees() -> None:
    """Give back the room of all syntax trees that were read."""
    _kept_tree.cache_clear()


def modules(*packages: str) -> list[Module]:
    """Return all modules of some top-level packages; those of the folder `sdk` have their names in it."""
    found = []
    for package in packages:
        folder = ROOT / SDK if package == SDK else ROOT
        for path in sorted((ROOT / package).rglob("*.py")):
            name = ".".join(path.relative_to(folder).with_suffix("").parts).removesuffix(".__init__")
            found.append(Module(name, path))
    return found


@functools.cache
def _kept_tree(path: Path) -> ast.Module:
    return _read_tree(path)


@functools.cache
def _imports_of(path: Path) -> Sequence[Import]:
    return tuple(_imports(_read_tree(path), False))


def _read_tree(path: Path) -> ast.Module:
    tree = ast.parse(path.read_text(), str(path))
    gc.freeze()  # no collection finds anything in it, and looking takes longer than reading does
    return tree


def _imports(node: ast.AST, optional: bool) -> Iterator[Import]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Import):
            yield from (Import(alias.name, child.lineno, optional) for alias in child.names)
        elif isinstance(child, ast.ImportFrom):
            home = _home(child)
            # `from package import module` names a module too; a plain name does no harm as one more entry.
            yield Import(home, child.lineno, optional)
            yield from (Import(f"{home}.{alias.name}", child.lineno, optional) for alias in child.names)
        else:
            guarded, rest = _guarded(child)
            for statement in guarded:
                yield from _imports(ast.Module([statement], []), True)
            for part in rest:
                yield from _imports(part, optional)


def _home(node: ast.ImportFrom) -> str:
    """Return the module that names are imported from; `.module` stands for `helpers.module`.

    That folder is the only one with two names, so nothing else may use the form (a test looks).
    """
    assert node.level <= 1, "imports reach no folder above"
    return ".".join(filter(None, ("helpers" if node.level else "", node.module)))


def _guarded(node: ast.AST) -> tuple[list[ast.stmt], list[ast.AST]]:
    """Split a node into the statements that may fail to import, and what else it holds."""
    if isinstance(node, ast.If) and ast.unparse(node.test) in ("TYPE_CHECKING", "typing.TYPE_CHECKING"):
        return node.body, [ast.Module(node.orelse, [])]
    if isinstance(node, ast.Try) and any("ImportError" in ast.unparse(each) for each in node.handlers):
        return node.body, [*node.handlers, ast.Module(node.orelse + node.finalbody, [])]
    return [], [node]

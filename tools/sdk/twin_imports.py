"""The imports of a blocking twin: those of its original that it uses too, and what it is made with."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping

from tools.sdk.annotations import SHAPES, names

LINE = 110
THIRD_PARTY = {"msgspec"}
PORTAL, SHAPES_HOME = "execserver_client.sync._portal", "execserver_client.sync._shapes"
STANDARD = {"collections.abc": {"Iterable"}, "typing": {"Any", "Self"}}


def needed(tree: ast.Module, body: str, package: str, module: str, others: Mapping[str, str]) -> str:
    """Return the imports for a twin's body, sorted as the linter wants them.

    `others` are the classes whose twins lie in other modules, with these modules.
    """
    used = names(ast.parse(body))
    own = set(_defined(tree)) - {each.name for each in ast.parse(body).body if isinstance(each, ast.ClassDef)}
    wanted = {home: spelled & used for home, spelled in STANDARD.items()}
    for name, home, spelled in _imported(tree):
        if name in used and name not in others:
            wanted.setdefault(home, set()).add(spelled)
    late = late_imports(tree, package, others)
    if late:
        wanted["typing"].add("TYPE_CHECKING")
    for name in (used & others.keys()) - late.keys():
        wanted.setdefault(f"{package}.sync.{others[name]}", set()).add(name)
    wanted[f"{package}.{module}"] = (own & used) - others.keys()
    wanted[PORTAL] = {"Portal"}
    wanted[SHAPES_HOME] = used & SHAPES
    lines = [_line(home, spelled) for home, spelled in wanted.items() if spelled]
    lines.append(f"from {package} import {module} as asynchronous")
    lines += [f"import {name}" for name in _whole_modules(tree) if name in used]
    if "shapes" in used:
        lines.append("from execserver_client.sync import _shapes as shapes")
    groups: dict[int, list[str]] = {}
    for line in sorted(lines, key=lambda line: (line.startswith("from"), line.split()[1])):
        groups.setdefault(_group(line.split()[1], package), []).append(line)
    if late:
        groups[max(groups) + 1] = ["if TYPE_CHECKING:", *(f"    {late[name]}" for name in sorted(late))]
    return "\n\n".join("\n".join(groups[group]) for group in sorted(groups))


def late_imports(tree: ast.AST, package: str, homes: Mapping[str, str]) -> dict[str, str]:
    """Return the twins that properties import when they are used, as their originals do; with the line."""
    properties = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef) and any(map(_is_property, node.decorator_list))
    ]
    imported = [
        alias.name
        for node in properties
        for each in node.body
        if isinstance(each, ast.ImportFrom)
        for alias in each.names
    ]
    return {name: f"from {package}.sync.{homes[name]} import {name}" for name in imported if name in homes}


def _is_property(decorator: ast.expr) -> bool:
    return isinstance(decorator, ast.Name) and decorator.id in ("property", "cached_property")


def _imported(tree: ast.Module) -> Iterator[tuple[str, str, str]]:
    """Yield each name that a module imports from another: the name, its home, and how it is written."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module and node.module != "__future__":
            for alias in node.names:
                spelled = f"{alias.name} as {alias.asname}" if alias.asname else alias.name
                yield alias.asname or alias.name, node.module, spelled


def _whole_modules(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.asname is None)


def _defined(tree: ast.Module) -> Iterator[str]:
    for node in tree.body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield node.name
        elif isinstance(node, ast.Assign):
            yield from (each.id for each in node.targets if isinstance(each, ast.Name))
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            yield node.target.id


def _group(module: str, package: str) -> int:
    top = module.partition(".")[0]
    if top in (package.partition(".")[0], "execserver", "execserver_client"):
        return 2
    return 1 if top in THIRD_PARTY else 0


def _line(module: str, spelled: set[str]) -> str:
    ordered = sorted(spelled, key=lambda name: (not name.isupper(), not name[:1].isupper(), name))
    line = f"from {module} import {', '.join(ordered)}"
    if len(line) <= LINE:
        return line
    return "\n".join([f"from {module} import (", *(f"    {name}," for name in ordered), ")"])

"""How the annotations of asyncio code read in its blocking twin, and how values get from one to the other."""

from __future__ import annotations

import ast
from collections.abc import Collection
from typing import NamedTuple

# Asyncio's generic types, and what stands for them in the twin.
ITERATED = {"AsyncIterator", "AsyncGenerator"}
ENTERED = {"AbstractAsyncContextManager"}
OPENED = {"Opening"}  # awaited, or entered: the twin of what is opened can be entered itself
GIVEN = {"AsyncIterable": "Iterable", "AsyncIterator": "Iterable"}
LISTS = {"list", "Sequence", "Iterable", "Collection"}
SHAPES = {"Context", "Items"}


class Unsupported(Exception):
    """The generator does not know how to bring a value of this type across."""


class Known(NamedTuple):
    """The classes that have a twin."""

    twins: Collection[str]


def text(node: ast.expr) -> str:
    """Return an expression as source, with the quotes of the house."""
    plain = ast.unparse(node)
    return plain if '"' in plain else plain.replace("'", '"')


def names(node: ast.AST) -> set[str]:
    """Return the names that an expression uses; of dotted ones the first part."""
    return {each.id for each in ast.walk(node) if isinstance(each, ast.Name)}


def parsed(node: ast.expr) -> ast.expr:
    """Return an annotation without the quotes it may be written in."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return ast.parse(node.value, mode="eval").body
    return node


def returned(node: ast.expr, known: Known) -> ast.expr:
    """Return the annotation of a result in the twin."""
    node = parsed(node)
    kind, item = generic(node)
    if item is not None and kind in ITERATED:
        return ast.Subscript(ast.Name("Items"), returned(item, known))
    if item is not None and kind in OPENED:
        return returned(item, known)
    if item is not None and kind in ENTERED:
        return ast.Subscript(ast.Name("Context"), returned(item, known))
    return node


def taken(node: ast.expr) -> ast.expr:
    """Return the annotation of a parameter in the twin."""
    node = parsed(node)

    class Blocking(ast.NodeTransformer):
        def visit_Name(self, name: ast.Name) -> ast.expr:
            return ast.Name(GIVEN.get(name.id, name.id))

    found: ast.expr = Blocking().visit(ast.parse(ast.unparse(node), mode="eval").body)
    if isinstance(found, ast.BinOp):  # both kinds of iterators are one here
        found = ast.parse(" | ".join(dict.fromkeys(map(text, _alternatives(found)))), mode="eval").body
    return found


def generic(node: ast.expr) -> tuple[str, ast.expr | None]:
    """Split `Name[item, ...]` into the name and its first item."""
    if not isinstance(node, ast.Subscript) or not isinstance(node.value, ast.Name):
        return "", None
    item = node.slice.elts[0] if isinstance(node.slice, ast.Tuple) else node.slice
    return node.value.id, item


def wrapped(node: ast.expr, value: str, known: Known) -> str:
    """Return the expression that makes the twin's result of an asyncio result."""
    node = parsed(node)
    kind, item = generic(node)
    if isinstance(node, ast.Name) and node.id in known.twins:
        return f"{node.id}(self._portal, {value})"
    if item is not None and kind in ITERATED | ENTERED:
        made = "Items" if kind in ITERATED else "Context"
        return f"{made}(self._portal, {value}, {_wrapper(item, known)})"
    if item is not None and kind in OPENED:
        return wrapped(item, value, known)
    if not names(node) & set(known.twins):
        return value
    if isinstance(node, ast.BinOp) and text(node.right) == "None":
        return f"None if {value} is None else {wrapped(node.left, value, known)}"
    if item is not None and kind in LISTS:
        return f"[{wrapped(item, 'each', known)} for each in {value}]"
    raise Unsupported(f"no way to wrap {text(node)}")


def _wrapper(item: ast.expr, known: Known) -> str:
    inside = wrapped(item, "each", known)
    return "shapes.same" if inside == "each" else f"lambda each: {inside}"


def unwrapped(node: ast.expr | None, name: str, known: Known) -> str:
    """Return the expression that passes a parameter on to asyncio."""
    if node is None:
        return name
    node = parsed(node)
    used = names(node)
    if used & set(GIVEN):
        streamed = f"shapes.feed({name})"
        return streamed if not isinstance(node, ast.BinOp) else _if_streamed(node, name, streamed)
    twin = used & set(known.twins)
    if not twin:
        return name
    if isinstance(node, ast.Name):
        return f"{name}._wrapped"
    if isinstance(node, ast.BinOp) and len(twin) == 1:
        return f"{name}._wrapped if isinstance({name}, {twin.pop()}) else {name}"
    raise Unsupported(f"no way to pass {name}: {text(node)}")


def _if_streamed(node: ast.expr, name: str, streamed: str) -> str:
    plain = sorted(
        text(each).partition("[")[0] for each in _alternatives(node) if not names(each) & set(GIVEN)
    )
    if set(plain) & set(GIVEN.values()):
        return streamed  # the caller's own iterator may block in either case
    kinds = " | ".join("None" if each == "None" else each for each in plain)
    return f"{name} if isinstance({name}, {kinds}) else {streamed}"


def _alternatives(node: ast.expr) -> list[ast.expr]:
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitOr):
        return [*_alternatives(node.left), *_alternatives(node.right)]
    return [node]

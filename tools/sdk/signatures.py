"""Entries of the SDK's reference: signatures and docstrings, read from source without importing it."""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Iterator

_WIDTH = 120


def of_source(module: str, text: str) -> Iterator[str]:
    """Yield the entries of a module's public classes, with their arguments or fields, and of its fixtures."""
    for node in ast.parse(text).body:
        if not isinstance(node, ast.ClassDef | ast.FunctionDef) or node.name.startswith("_"):
            continue
        doc = ast.get_docstring(node)
        if isinstance(node, ast.ClassDef):
            yield f"## `{module}.{node.name}`\n"
            yield from prose(doc)
            yield from _making(node)
        elif any(ast.unparse(each).startswith("pytest.fixture") for each in node.decorator_list):
            yield f"## The fixture `{node.name}`\n"
            yield from prose(doc)


def _making(node: ast.ClassDef) -> Iterator[str]:
    """Yield how an object of a class is made, where that is for others to do."""
    fields = [
        _written(each)
        for each in node.body
        if isinstance(each, ast.AnnAssign) and not ast.unparse(each.target).startswith("_")
    ]
    if fields:
        yield "```python\n" + "\n".join(fields) + "\n```\n"
    for each in node.body:
        if isinstance(each, ast.FunctionDef) and each.name == "__init__" and each.args.kwonlyargs:
            each.args.args = each.args.args[1:]
            yield signature(node.name, each.args, "")
            yield from prose(ast.get_docstring(each))


def signature(name: str, arguments: ast.arguments, returns: str) -> str:
    """Return a signature as a block of code, in lines where it is long."""
    parts = _arguments(arguments)
    line = f"{name}({', '.join(parts)}){returns}"
    if len(line) > _WIDTH:
        line = f"{name}(\n" + "".join(f"    {part},\n" for part in parts) + f"){returns}"
    return f"```python\n{line}\n```\n"


def _arguments(arguments: ast.arguments) -> list[str]:
    """Return the arguments as they are written, one a string."""
    given = [*arguments.posonlyargs, *arguments.args]
    defaults = [None] * (len(given) - len(arguments.defaults)) + list(arguments.defaults)
    parts = [_argument(each, default) for each, default in zip(given, defaults, strict=True)]
    if arguments.vararg is not None:
        parts.append(f"*{ast.unparse(arguments.vararg)}")
    elif arguments.kwonlyargs:
        parts.append("*")
    parts += [
        _argument(each, default)
        for each, default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)
    ]
    if arguments.kwarg is not None:
        parts.append(f"**{ast.unparse(arguments.kwarg)}")
    return parts


def _argument(argument: ast.arg, default: ast.expr | None) -> str:
    text = _written(argument)
    return text if default is None else f"{text} = {_written(default)}"


def _written(node: ast.AST) -> str:
    """Return the source of a node, as the formatter wants it; no text in our signatures has a quote in it."""
    return ast.unparse(node).replace("'", '"')


def prose(doc: str | None) -> Iterator[str]:
    """Yield a docstring; indented paragraphs are code."""
    for paragraph in inspect.cleandoc(doc or "").split("\n\n"):
        if paragraph.startswith("    "):
            yield f"```python\n{textwrap.dedent(paragraph)}\n```\n"
        elif paragraph:
            yield textwrap.fill(paragraph, _WIDTH, break_long_words=False, break_on_hyphens=False) + "\n"

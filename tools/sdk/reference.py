"""Writes docs/sdk-reference.md: the public names of the SDK with their signatures and docstrings.

`python -m tools.sdk.reference` writes the page; a test fails when it is not up to date.
"""

from __future__ import annotations

import ast
import inspect
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from types import FunctionType

from tools.sdk.signatures import of_source, prose, signature

ROOT = Path(__file__).resolve().parent.parent.parent
PAGE = ROOT / "docs" / "sdk-reference.md"
PACKAGES = ("execserver_client",)
SOURCES = ("execserver_adapters", "pytest_execserver")  # what they are for is not installed where this runs
PARTS = {  # what an attribute of `Box` leads to
    "execserver_client": ("files.Files", "ports.Ports", "http.Http", "sessions.Sessions"),
}
_HEAD = """# The SDK's names

Made from the docstrings by `python3 build.py docs`; [sdk.md](sdk.md) shows how they are used. The names of
`execserver_client.sync` are the same, without `async` and `await`. At the end are the classes of the
adapters, whose methods are those of their frameworks, and the fixtures of the pytest plugin.
"""


def render() -> str:
    """Return the page."""
    lines = [_HEAD]
    for package in PACKAGES:
        for name, value in _public(package):
            lines.extend(_entry(name, value))
    for package in SOURCES:
        for path in sorted((ROOT / "sdk" / package).glob("[a-z]*.py")):
            lines.extend(of_source(f"{package}.{path.stem}", path.read_text(encoding="utf-8")))
    return "\n".join(lines).rstrip("\n") + "\n"


def _public(package: str) -> Iterator[tuple[str, object]]:
    module = __import__(package)
    seen: set[int] = set()
    for name in sorted(module.__all__, key=lambda name: (name[0].isupper(), name.lower())):
        value = getattr(module, name)
        seen.add(id(value))
        yield name, value
    for path in PARTS[package]:
        part, _, name = path.rpartition(".")
        value = getattr(__import__(f"{package}.{part}", fromlist=[name]), name)
        if id(value) not in seen:
            yield name, value


def _entry(name: str, value: object) -> Iterator[str]:
    if inspect.isclass(value):
        yield from _class(name, value)
    elif isinstance(value, FunctionType):
        yield f"## `{name}`\n"
        yield from _function(value, name, 0)


def _class(name: str, value: type) -> Iterator[str]:
    yield f"## `{name}`\n"
    if issubclass(value, BaseException):
        bases = ", ".join(f"`{base.__name__}`" for base in value.__bases__)
        yield f"An error; also {bases}.\n"
    yield from prose(value.__doc__)
    for member, plain in _members(value):
        if isinstance(plain, property) and plain.fget is not None:
            yield f"### `{name}.{member}`\n"
            yield from prose(plain.fget.__doc__)
        elif isinstance(plain, FunctionType):
            yield f"### `{name}.{member}`\n"
            yield from _function(plain, member, 1)
        elif isinstance(plain, classmethod | staticmethod):
            yield f"### `{name}.{member}`\n"
            yield from _function(plain.__func__, member, isinstance(plain, classmethod))


def _members(value: type) -> Iterator[tuple[str, object]]:
    """Yield the members that the class, or a base of ours, defines and documents."""
    found: dict[str, object] = {}
    for base in reversed(value.__mro__):
        if base.__module__.partition(".")[0] in {"execserver", *PACKAGES}:
            found.update(vars(base))
    for name, plain in found.items():
        if not name.startswith("_") and inspect.getdoc(plain):
            yield name, plain


def _function(function: object, name: str, skipped: int) -> Iterator[str]:
    assert isinstance(function, FunctionType)
    node = ast.parse(textwrap.dedent(inspect.getsource(inspect.unwrap(function)))).body[0]
    assert isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    node.args.args = node.args.args[skipped:]
    begins = "await " if isinstance(node, ast.AsyncFunctionDef) and not _yields(node) else ""
    returns = "" if node.returns is None else f" -> {ast.unparse(node.returns)}"
    yield signature(f"{begins}{name}", node.args, returns)
    yield from prose(function.__doc__)


def _yields(node: ast.AST) -> bool:
    return any(isinstance(each, ast.Yield) for each in ast.walk(node))


def main() -> None:
    """Write the page."""
    PAGE.write_text(render(), encoding="utf-8")


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT / "sdk"))
    main()

"""The rules of CONTRIBUTING.md that a program can check."""

from __future__ import annotations

import ast
import statistics
from collections.abc import Iterator

from tests.support.source import ROOT, Module, modules

PRODUCT = modules("execserver", "helpers", "sdk")
ALL = [*PRODUCT, *modules("tools", "bench")]

MODULE_LINES = 400
FUNCTION_LINES = 50
MEDIAN_FUNCTION_LINES = 12

# Where a failure of any kind ends: one request, one connection.  Both log it.
BROAD_EXCEPT_LIMIT = 2

ONLY_LOOKS = ("isinstance", "callable", "len", "all", "any", "set")

Function = ast.FunctionDef | ast.AsyncFunctionDef


def named(module: Module, line: int) -> str:
    return f"{module.path.relative_to(ROOT)}:{line}"


def functions(module: Module) -> Iterator[Function]:
    for node in ast.walk(module.tree):
        if isinstance(node, Function):
            yield node


def lines_of(node: Function) -> int:
    return (node.end_lineno or node.lineno) - node.lineno + 1


def test_modules_stay_short() -> None:
    lengths = {named(module, 1): len(module.path.read_text().splitlines()) for module in ALL}
    assert {name: length for name, length in lengths.items() if length > MODULE_LINES} == {}


def test_functions_stay_short() -> None:
    long = [
        f"{named(module, node.lineno)} {node.name}: {lines_of(node)}"
        for module in ALL
        for node in functions(module)
        if lines_of(node) > FUNCTION_LINES
    ]
    assert long == []
    median = statistics.median(lines_of(node) for module in PRODUCT for node in functions(module))
    assert median < MEDIAN_FUNCTION_LINES


def test_assertions_only_look() -> None:
    """The built files are made without them, so nothing may happen in one."""
    acting = [
        named(module, node.lineno)
        for module in ALL
        for node in ast.walk(module.tree)
        if isinstance(node, ast.Assert)
        for part in ast.walk(node.test)
        if isinstance(part, ast.NamedExpr | ast.Await)
        or (isinstance(part, ast.Call) and ast.unparse(part.func) not in ONLY_LOOKS)
    ]
    assert acting == []


def test_every_module_says_what_it_owns() -> None:
    silent = [named(module, 1) for module in ALL if module.tree.body and not ast.get_docstring(module.tree)]
    assert silent == []


def test_public_classes_and_functions_are_described() -> None:
    silent = []
    for module in PRODUCT:
        for node in ast.walk(module.tree):
            if not isinstance(node, ast.ClassDef | ast.Module):
                continue
            if isinstance(node, ast.ClassDef) and node.name.startswith("_"):
                continue
            silent += [
                f"{named(module, child.lineno)} {child.name}"
                for child in node.body
                if isinstance(child, ast.ClassDef | Function)
                if not child.name.startswith("_") and not ast.get_docstring(child)
            ]
    assert silent == []


def test_failures_of_any_kind_are_caught_in_two_places_only() -> None:
    broad = [
        named(module, node.lineno)
        for module in PRODUCT
        for node in ast.walk(module.tree)
        if isinstance(node, ast.ExceptHandler)
        if node.type is None or ast.unparse(node.type) == "Exception"
    ]
    assert len(broad) <= BROAD_EXCEPT_LIMIT, broad


def test_every_module_postpones_its_annotations() -> None:
    def postpones(module: Module) -> bool:
        imports = [node for node in module.tree.body if isinstance(node, ast.ImportFrom)]
        return any(node.module == "__future__" for node in imports)

    assert [named(module, 1) for module in ALL if len(module.tree.body) > 1 and not postpones(module)] == []

"""Compiles the regular expressions of modules ahead: to do so at each start takes a thirtieth of it.

`re.compile("...")` outside of functions becomes the call by which `re` itself ends: `_sre.compile`, with the
code that it has made of the text.  That code is for the interpreter of the same version, as byte-code is.
"""

from __future__ import annotations

import ast
import re
from array import array
from importlib import import_module
from typing import Any

_parser: Any = import_module("re._parser")
_compiler: Any = import_module("re._compiler")
_UNIT = "I"  # of the code, four bytes
_IN_FLAGS = (ast.Attribute, ast.Name, ast.BinOp, ast.BitOr, ast.Load)


def compile_ahead(module: ast.Module) -> None:
    """Change a parsed module so that its regular expressions need not be compiled when it is loaded."""
    names = {
        each.asname or each.name
        for statement in module.body
        if isinstance(statement, ast.Import)
        for each in statement.names
        if each.name == "re"
    }
    if names:
        _Ahead(names).visit(module)
        ast.fix_missing_locations(module)


class _Ahead(ast.NodeTransformer):
    """Changes calls of `compile`; `names` are those that the module gives to `re`."""

    def __init__(self, names: set[str]) -> None:
        self._names = names

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        """Leave what runs later: `re` remembers there what it was asked for."""
        return node

    def visit_AsyncFunctionDef(self, node: ast.AsyncFunctionDef) -> ast.AST:
        """Leave this, too."""
        return node

    def visit_Lambda(self, node: ast.Lambda) -> ast.AST:
        """Leave this, too."""
        return node

    def visit_Call(self, node: ast.Call) -> ast.AST:
        """Change a call of `compile` that has constants only."""
        match node:
            case ast.Call(
                func=ast.Attribute(value=ast.Name(id=name), attr="compile"),
                args=[ast.Constant(value=str() | bytes() as pattern), *flags],
                keywords=[],
            ) if name in self._names and len(flags) < 2 and all(map(self._are_flags, flags)):
                values = [eval(ast.unparse(each), dict.fromkeys(self._names, re)) for each in flags]
                return _made_of(name, pattern, *map(int, values))
        return self.generic_visit(node)

    def _are_flags(self, node: ast.expr) -> bool:
        return all(
            isinstance(each, _IN_FLAGS) and (not isinstance(each, ast.Name) or each.id in self._names)
            for each in ast.walk(node)
        )


def _made_of(name: str, pattern: str | bytes, flags: int = 0) -> ast.expr:
    """Return the expression that makes a pattern; `name` is that of `re`."""
    parsed = _parser.parse(pattern, flags)
    code = array(_UNIT, _compiler._code(parsed, flags)).tobytes()
    numbers = {number: group for group, number in parsed.state.groupdict.items()}
    groups = (
        parsed.state.groups - 1,
        parsed.state.groupdict,
        tuple(numbers.get(number) for number in range(parsed.state.groups)),
    )
    words = [pattern, flags | parsed.state.flags, *groups]
    text, all_flags, count, by_name, by_number = map(repr, words)
    made = f'list(memoryview({code!r}).cast("{_UNIT}"))'
    call = f"{name}._compiler._sre.compile({text}, {all_flags}, {made}, {count}, {by_name}, {by_number})"
    return ast.parse(call, mode="eval").body

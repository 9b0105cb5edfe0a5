"""Writes the blocking twin of an asyncio module: for each class one whose methods go through the portal.

Read from the source, without importing it.  A twin has the public methods, properties and attributes of its
original, with the same parameters and docstrings; `aclose` is `close`, `async with` is `with`.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from tools.sdk.annotations import (
    OPENED,
    Known,
    Unsupported,
    generic,
    parsed,
    returned,
    taken,
    text,
    unwrapped,
    wrapped,
)
from tools.sdk.twin_imports import late_imports, needed

LINE = 110
RENAMED = {
    "__aenter__": "__enter__",
    "__aexit__": "__exit__",
    "__aiter__": "__iter__",
    "__anext__": "__next__",
    "aclose": "close",
}
WORDS = [
    (re.compile(r"\ban `async with`"), "a `with`"),
    (re.compile(r"\basync (with|for|def)\b"), r"\1"),
    (re.compile(r"\bawait "), ""),
    (re.compile(r"\baclose\b"), "close"),
    (re.compile(r"\basynchronous (iterator|context)"), r"\1"),
    (
        re.compile(r"A \w+ belongs to the event loop in which it was made; several\s+tasks\b"),
        "Several threads",
    ),
    (re.compile(r"\b([Ss]everal\s+)tasks\b"), r"\1threads"),
    (re.compile(r"\bin the event loop\b"), "in a thread of this package"),
    (re.compile(r"\bthe awaiting task is cancelled\b"), "the waiting thread is interrupted"),
]
Function = ast.FunctionDef | ast.AsyncFunctionDef


class Plan(NamedTuple):
    """One module of the twin: where it comes from, and the classes in it that get one."""

    package: str
    module: str
    classes: tuple[str, ...]
    # Class -> module of the twin, of all twins.
    homes: Mapping[str, str]
    # The class that owns its portal: closing it closes that.
    owners: tuple[str, ...] = ()
    # Methods and attributes for the package itself, which the twin has not.
    hidden: frozenset[str] = frozenset()

    @property
    def known(self) -> Known:
        return Known(self.homes.keys())


def generate(source: str, plan: Plan) -> str:
    """Return the source of a module's twin; raise Unsupported."""
    tree = ast.parse(source)
    classes = {node.name: node for node in tree.body if isinstance(node, ast.ClassDef)}
    body = "\n\n\n".join(_Class(classes[name], plan).source() for name in plan.classes)
    head = f'"""The blocking twin of `{plan.package}.{plan.module}`; `build.py docs` writes it from there."""'
    imports = needed(
        tree,
        body,
        plan.package,
        plan.module,
        {name: plan.homes[name] for name in plan.homes if name not in plan.classes},
    )
    return f"{head}\n\nfrom __future__ import annotations\n\n{imports}\n\n\n{body}\n"


class _Class:
    """The twin of one class."""

    def __init__(self, node: ast.ClassDef, plan: Plan) -> None:
        self._node = node
        self._plan = plan
        self._known = plan.known
        self._owns = node.name in plan.owners
        self._properties = set[str]()

    def source(self) -> str:
        """Return the class as text."""
        name, plan = self._node.name, self._plan
        docstring = _docstring(self._node, 4) or _quoted(f"The blocking twin of `{plan.package}.{name}`.", 4)
        parts = [
            f"class {name}:\n{docstring}",
            "    def __init__(self, portal: Portal, wrapped: asynchronous." + name + ") -> None:\n"
            "        self._portal = portal\n        self._wrapped = wrapped"
            + ("\n        portal.adopt(wrapped.aclose)" if self._owns else ""),
        ]
        for child in self._node.body:
            if isinstance(child, Function) and child.name in plan.hidden:
                continue
            if isinstance(child, Function) and _is_public(child.name):
                parts += self._method(child)
            elif isinstance(child, Function) and child.name == "__init__":
                parts += self._attributes(child)
            elif isinstance(child, ast.AnnAssign) and isinstance(child.target, ast.Name):
                parts += self._attribute(child.target.id, child.annotation, "")
        return "\n\n".join(parts)

    def _attributes(self, init: Function) -> Iterator[str]:
        """Yield properties for the public attributes that `__init__` makes."""
        given = {each.arg: each.annotation for each in (*init.args.args, *init.args.kwonlyargs)}
        for node in ast.walk(init):
            target, annotation, value = _assigned(node)
            if target is None or target.startswith("_") or target in self._plan.hidden:
                continue
            if annotation is None and isinstance(value, ast.Name):
                annotation = given.get(value.id)
            if annotation is None and isinstance(value, ast.Call) and isinstance(value.func, ast.Name):
                annotation = value.func
            if annotation is None and isinstance(value, ast.Constant) and value.value is not None:
                annotation = ast.Name(type(value.value).__name__)
            if annotation is None:
                raise Unsupported(f"{self._node.name}.{target} needs an annotation")
            yield from self._attribute(target, annotation, "")

    def _attribute(
        self, name: str, annotation: ast.expr, docstring: str, late: Iterable[str] = ()
    ) -> Iterator[str]:
        if name.startswith("_") or name in self._properties or text(annotation).startswith("ClassVar"):
            return
        self._properties.add(name)
        result = text(returned(annotation, self._known))
        lines = ["    @property", f"    def {name}(self) -> {result}:"]
        lines.append(docstring or _quoted(f"As in `{self._plan.package}.{self._node.name}`.", 8))
        lines += [f"        {line}\n" for line in late]
        yield "\n".join([*lines, *self._returning(annotation, f"self._wrapped.{name}")])

    def _method(self, node: Function) -> Iterator[str]:
        decorators = {text(each).rpartition(".")[2] for each in node.decorator_list}
        if node.returns is None:
            raise Unsupported(f"{self._node.name}.{node.name} has no return annotation")
        if decorators & {"property", "cached_property"}:
            late = late_imports(node, self._plan.package, self._plan.homes).values()
            yield from self._attribute(node.name, node.returns, _docstring(node, 8), late)
        elif "setter" in decorators:
            yield self._setter(node)
        elif node.name == "__aenter__":
            yield self._entering()
        elif node.name == "__aexit__":
            yield self._leaving()
        elif node.name == "__anext__":
            yield self._next(node)
        elif decorators <= {"asynccontextmanager", "overload"} and "overload" not in decorators:
            yield self._call(node, entered="asynccontextmanager" in decorators)
        else:
            raise Unsupported(f"{self._node.name}.{node.name}: {', '.join(sorted(decorators))}")

    def _setter(self, node: Function) -> str:
        value = node.args.args[1]
        annotation = text(taken(value.annotation)) if value.annotation else "object"
        return (
            f"    @{node.name}.setter\n"
            f"    def {node.name}(self, {value.arg}: {annotation}) -> None:\n"
            f'        self._portal.run(setattr, self._wrapped, "{node.name}", {value.arg})'
        )

    def _entering(self) -> str:
        enter = "self._portal.call(self._wrapped.__aenter__)"
        return f"    def __enter__(self) -> Self:\n        {enter}\n        return self"

    def _leaving(self) -> str:
        """Leave as the original does; the owner of the portal closes that, which closes the original."""
        leave = "self._portal.close()" if self._owns else "self._portal.call(self._wrapped.__aexit__, *error)"
        return f"    def __exit__(self, *error: Any) -> None:\n        {leave}"

    def _next(self, node: Function) -> str:
        assert node.returns is not None
        result = text(returned(node.returns, self._known))
        item = wrapped(node.returns, "item", self._known)
        return (
            f"    def __next__(self) -> {result}:\n"
            "        for item in self._portal.call(shapes.step, self._wrapped):\n"
            f"            return {item}\n"
            "        raise StopIteration"
        )

    def _call(self, node: Function, *, entered: bool) -> str:
        annotation = node.returns
        assert annotation is not None
        known = self._known
        if entered:
            annotation = ast.parse(
                f"AbstractAsyncContextManager[{text(_item(annotation))}]", mode="eval"
            ).body
        name = RENAMED.get(node.name, node.name)
        shown = text(returned(annotation, known))
        lines = [_signature(name, node.args, shown)]
        if docstring := _docstring(node, 8):
            lines.append(docstring)
        lines += self._body(node, annotation, entered=entered)
        return "\n".join(lines)

    def _body(self, node: Function, annotation: ast.expr, *, entered: bool) -> list[str]:
        """Return the lines that carry the call out."""
        if self._owns and node.name == "aclose":
            return ["        self._portal.close()"]
        if self._owns and node.name == "detach":
            detach = "            self._portal.call(self._wrapped.detach)"
            end = ["            self._portal.adopt(None)", "            self._portal.close()"]
            return ["        try:", detach, "        finally:", *end]
        if generic(parsed(annotation))[0] in OPENED:
            return self._returning(annotation, _opened(f"self._wrapped.{node.name}", node.args, self._known))
        is_coroutine = isinstance(node, ast.AsyncFunctionDef) and not entered and not _yields(node)
        through = "self._portal.call" if is_coroutine else "self._portal.run"
        call = _called(through, f"self._wrapped.{node.name}", node.args, self._known, 8)
        if text(annotation) == "None":
            return [f"        {call}"]
        if text(annotation) in ("Self", f'"{self._node.name}"', self._node.name) and node.name == "__aiter__":
            return ["        return self"]
        if text(annotation) == "Self":
            return [f"        {call}", "        return self"]
        return self._returning(annotation, call)

    def _returning(self, annotation: ast.expr, value: str) -> list[str]:
        """Return the lines that return the twin of a value."""
        found = wrapped(annotation, "found", self._known)
        if found == "found":
            return [f"        return {value}"]
        if isinstance(parsed(annotation), ast.Name) and "\n" not in value:
            value, found = "", wrapped(annotation, value, self._known)
        return [*([f"        found = {value}"] if value else []), f"        return {found}"]


def _signature(name: str, arguments: ast.arguments, result: str) -> str:
    parameters = ["self", *_parameters(arguments)]
    line = f"    def {name}({', '.join(parameters)}) -> {result}:"
    if len(line) <= LINE:
        return line
    inside = f"        {', '.join(parameters)}"
    if len(inside) <= LINE and "*args" not in inside:
        return f"    def {name}(\n{inside}\n    ) -> {result}:"
    return "\n".join(
        [f"    def {name}(", *(f"        {each}," for each in parameters), f"    ) -> {result}:"]
    )


def _parameters(arguments: ast.arguments) -> Iterator[str]:
    plain = [*arguments.posonlyargs, *arguments.args]
    missing = len(plain) - len(arguments.defaults)
    for index, each in enumerate(plain):
        if index:
            yield _parameter(each, arguments.defaults[index - missing] if index >= missing else None)
        if arguments.posonlyargs and index == len(arguments.posonlyargs) - 1:
            yield "/"
    if arguments.vararg:
        yield f"*{_parameter(arguments.vararg, None)}"
    elif arguments.kwonlyargs:
        yield "*"
    for each, default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True):
        yield _parameter(each, default)
    if arguments.kwarg:
        raise Unsupported(f"**{arguments.kwarg.arg}")


def _parameter(each: ast.arg, default: ast.expr | None) -> str:
    told = each.arg if each.annotation is None else f"{each.arg}: {text(taken(each.annotation))}"
    if default is None:
        return told
    return f"{told} = {text(default)}" if each.annotation is not None else f"{told}={text(default)}"


def _called(through: str, function: str, arguments: ast.arguments, known: Known, indent: int) -> str:
    """Return the call of a function by way of the portal, with the parameters passed on."""
    given = [function, *_given(arguments, known)]
    line = f"{through}({', '.join(given)})"
    if indent + len("return ") + len(line) <= LINE:
        return line
    space = " " * indent
    return "\n".join([f"{through}(", *(f"{space}    {each}," for each in given), f"{space})"])


def _opened(function: str, arguments: ast.arguments, known: Known) -> str:
    """Return the call that has the portal open something, and wait until it is open."""
    space = " " * 12
    opening = f"lambda: {function}({', '.join(_given(arguments, known))})"
    return f"self._portal.call(\n{space}shapes.settle,\n{space}{opening},\n{space[4:]})"


def _given(arguments: ast.arguments, known: Known) -> Iterator[str]:
    """Yield the parameters as a caller writes them who passes them on."""
    for each in [*arguments.posonlyargs, *arguments.args][1:]:
        yield unwrapped(each.annotation, each.arg, known)
    if arguments.vararg:
        yield f"*{arguments.vararg.arg}"
    for each in arguments.kwonlyargs:
        yield f"{each.arg}={unwrapped(each.annotation, each.arg, known)}"


def _assigned(node: ast.AST) -> tuple[str | None, ast.expr | None, ast.expr | None]:
    """Return the attribute of `self` that a statement sets, its annotation, and its value."""
    target: ast.expr
    annotation = None
    if isinstance(node, ast.AnnAssign):
        target, annotation = node.target, node.annotation
    elif isinstance(node, ast.Assign):
        target = node.targets[0]
    else:
        return None, None, None
    if isinstance(target, ast.Attribute) and isinstance(target.value, ast.Name) and target.value.id == "self":
        return target.attr, annotation, node.value
    return None, None, None


def _is_public(name: str) -> bool:
    return name in RENAMED or not name.startswith("_")


def _yields(node: Function) -> bool:
    return any(isinstance(each, ast.Yield | ast.YieldFrom) for each in ast.walk(node))


def _item(annotation: ast.expr) -> ast.expr:
    node = parsed(annotation)
    assert isinstance(node, ast.Subscript)
    return node.slice.elts[0] if isinstance(node.slice, ast.Tuple) else node.slice


def _docstring(node: Function | ast.ClassDef, indent: int) -> str:
    first = node.body[0]
    if not (isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant)):
        return ""
    head, *rest = str(first.value.value).rstrip().split("\n")
    return _quoted("\n".join([head, *(line[first.col_offset :] for line in rest)]), indent)


def _quoted(docstring: str, indent: int) -> str:
    for pattern, replacement in WORDS:
        docstring = pattern.sub(replacement, docstring)
    space = " " * indent
    lines = docstring.replace("\\", "\\\\").split("\n")
    body = "\n".join([lines[0], *(space + line if line else "" for line in lines[1:])])
    return f'{space}"""{body}{chr(10) + space if len(lines) > 1 else ""}"""'

"""The language of rules files: Starlark with our functions.

The functions are themselves written in Starlark, since only there a tuple can be told from a list, and a
missing argument gives the language's own error.  They pass on their arguments.  If a call is refused, the
file is evaluated once more, with functions that fail at that very call: evaluation is deterministic, and an
error raised there shows the place of the call, down to its column.

Evaluation has no limits of its own (see `rules_process`).
"""

from __future__ import annotations

import re
from collections.abc import Callable
from itertools import count
from typing import TypeAlias

import starlark

from execserver.mcp.rule_calls import Argument, Other, PrefixRule, Refusal, host_executable, prefix_rule
from execserver.rules.policy import HostExecutable, Rule

_OWN_NAME = "<execserver>"
_FUNCTIONS = ("prefix_rule", "host_executable", "network_rule")

# `_call` gets the function's name and its arguments: texts, lists, and for anything else a dictionary that
# names the type.  As the default of `justification` it means "not given": no rules file can pass it.
_OWN_SOURCE = """
def _make(_call):
    def told(value, depth):
        kind = type(value)
        if kind == "string":
            return value
        if kind == "list" and depth:
            return [told(each, depth - 1) for each in value]
        return {"type": kind}

    def check(name, value, kind, shown):
        if type(value) != kind:
            text = "Type of parameter `{}` doesn't match, expected `{}`, actual `{} (repr: {})`"
            _call("refuse", text.format(name, shown, type(value), repr(value)))

    def prefix_rule(pattern, decision = "allow", match = [], not_match = [], justification = _call):
        check("pattern", pattern, "list", "list")
        check("decision", decision, "string", "str")
        check("match", match, "list", "list")
        check("not_match", not_match, "list", "list")
        given = type(justification) != type(_call)
        if given:
            check("justification", justification, "string", "str")
        _call("prefix_rule", call_stack(strip_frames = 1), told(pattern, 2), decision,
              told(match, 2), told(not_match, 2), justification if given else None)

    def host_executable(name, paths):
        check("name", name, "string", "str")
        check("paths", paths, "list", "list")
        _call("host_executable", name, told(paths, 1))

    def network_rule(*args, **kwargs):
        _call("refuse", "invalid rule: network_rule is not supported: nothing here looks at hosts")

    return prefix_rule, host_executable, network_rule

prefix_rule, host_executable, network_rule = _make(_rules_call)
"""


# What `_call` is given for an argument of any type.
_Told: TypeAlias = "str | list[_Told] | dict[str, str]"


# In the text of an error: the message between the trace and the place.
_MESSAGE = re.compile(r"^error: .*?(?=\n *--> )", re.MULTILINE | re.DOTALL)


class RulesFileError(Exception):
    """A rules file is not valid Starlark, or a call in it was refused; the text shows where and why."""


def evaluate(path: str, source: str) -> tuple[list[Rule], list[HostExecutable]]:
    """Return what a file declares, in its order; `path` is only for error texts.  Raises RulesFileError.

    Takes as much time and memory as the file wants; if the file nests too deep, a signal ends this process.
    """
    collector = _Collector()
    module = starlark.Module()
    module.add_callable("_rules_call", collector.call)
    own = starlark.Globals.extended_by([starlark.LibraryExtension.CallStack])
    starlark.eval(module, starlark.parse(_OWN_NAME, _OWN_SOURCE, _dialect()), own)
    try:
        starlark.eval(module, _parsed(path, source), starlark.Globals.standard())
    except starlark.StarlarkError as error:
        text = str(error)
        if collector.refusal is not None:
            text = _shown_at_call(collector.calls, collector.refusal, _parsed(path, source))
        text = f"starlark error: {text}"
        raise RulesFileError(text.replace(f"{_OWN_NAME}.", "").rstrip()) from None
    return collector.rules, collector.executables


def _dialect() -> starlark.Dialect:
    dialect = starlark.Dialect.extended()
    dialect.enable_f_strings = True
    return dialect


def _parsed(path: str, source: str) -> starlark.AstModule:
    # First the file alone, for unchanged error texts.  Then with a value at its end that the library can
    # convert: a file that ends with the definition of a function has none.
    starlark.parse(path, source, _dialect())
    return starlark.parse(path, f"{source}\nNone", _dialect())


def _shown_at_call(number: int, text: str, program: starlark.AstModule) -> str:
    """Evaluate a program up to its call number `number` of our functions; return the error with `text`."""
    calls = count(1)

    def fail_at_last(*_: object, **__: object) -> None:
        if next(calls) == number:
            raise Refusal

    module = starlark.Module()
    for name in _FUNCTIONS:
        module.add_callable(name, fail_at_last)
    try:
        starlark.eval(module, program, starlark.Globals.standard())
    except starlark.StarlarkError as error:
        return _MESSAGE.sub(lambda _: f"error: {text}", str(error), count=1)
    return f"error: {text}"


def _argument(told: _Told) -> Argument:
    if isinstance(told, list):
        return [_argument(each) for each in told]
    return told if isinstance(told, str) else Other(told["type"])


class _Collector:
    """Takes the calls of one evaluation; `calls` counts them, and a `refusal` is the last one."""

    def __init__(self) -> None:
        self.rules: list[Rule] = []
        self.executables: list[HostExecutable] = []
        self.calls = 0
        self.refusal: str | None = None

    def call(self, function: str, *arguments: object) -> None:
        """Carry out a call.  Raises Refusal."""
        self.calls += 1
        carry_out: dict[str, Callable[..., None]] = {
            "prefix_rule": self._prefix_rule,
            "host_executable": self._host_executable,
            "refuse": self._refuse,
        }
        try:
            carry_out[function](*arguments)
        except Refusal as refusal:
            self.refusal = str(refusal)
            raise

    def _prefix_rule(
        self,
        stack: str,
        pattern: list[_Told],
        decision: str,
        match: list[_Told],
        not_match: list[_Told],
        justification: str | None,
    ) -> None:
        examples = [_argument(each) for each in match], [_argument(each) for each in not_match]
        words = [_argument(each) for each in pattern]
        call = PrefixRule(words, decision, *examples, justification)
        self.rules.append(prefix_rule(call, _innermost_place(stack)))

    def _host_executable(self, name: str, paths: list[_Told]) -> None:
        self.executables.append(host_executable(name, [_argument(path) for path in paths]))

    def _refuse(self, text: str) -> None:
        raise Refusal(text)


def _innermost_place(stack: str) -> str:
    """Return `file:line` of the last frame of a trace, whose lines are `  * file:line, in function`."""
    frames = [line for line in stack.splitlines() if line.startswith("  * ")]
    return frames[-1].removeprefix("  * ").rpartition(", in ")[0]

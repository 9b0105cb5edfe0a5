"""The methods of the console by name: each takes the calling browser and params, and returns JSON values."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from execserver.box.web import files, processes, reports
from execserver.box.web.failing import WRONG, CallFailed
from execserver.box.web.reading import Params

if TYPE_CHECKING:
    from execserver.box.web.browser import Browser
    from execserver.box.web.console import Console
    from execserver.box.web.link import Link

Method = Callable[["Console", "Browser", Params], object]
_OfBox = Callable[["Link", Params], object]


def _of_box(method: _OfBox) -> Method:
    """Return a method that needs a box only."""
    return lambda console, browser, params: method(console.boxes.link(params.text("box")), params)


METHODS: Final[dict[str, Method]] = {
    "boxes.list": lambda console, browser, params: console.boxes.listed(),
    "processes.list": lambda console, browser, params: console.usage.listed(_link(console, params)),
    "usage.follow": lambda console, browser, params: console.usage.follow(
        _link(console, params), browser, params.flag("on", True)
    ),
    "process.start": _of_box(processes.start),
    "process.signal": _of_box(processes.signal),
    "log": _of_box(reports.log),
    "terminal.open": lambda console, browser, params: console.terminals.open(
        _link(console, params), browser, params
    ),
    "terminal.resize": lambda console, browser, params: console.terminals.resize(browser, params),
    "terminal.take": lambda console, browser, params: console.terminals.take(browser, params),
    "terminal.close": lambda console, browser, params: console.terminals.close(browser, params),
    "files.list": _of_box(files.listed),
    "files.read": _of_box(files.read),
    "files.write": _of_box(files.write),
    "files.mkdir": _of_box(files.mkdir),
    "files.remove": _of_box(files.remove),
    "files.rename": _of_box(files.rename),
    "ports.list": lambda console, browser, params: console.forwards.listed(_link(console, params)),
    "ports.forward": lambda console, browser, params: console.forwards.open(_link(console, params), params),
    "ports.close": lambda console, browser, params: console.forwards.close(params.text("url")),
    "sandbox.report": _of_box(reports.sandbox),
}


def _link(console: Console, params: Params) -> Link:
    return console.boxes.link(params.text("box"))


def carry_out(console: Console, browser: Browser, method: str, params: dict[str, Any]) -> object:
    """Carry out a call.  Raises CallFailed."""
    found = METHODS.get(method)
    if found is None:
        raise CallFailed(f"there is no method {method[:64]}", WRONG)
    return found(console, browser, Params(params))

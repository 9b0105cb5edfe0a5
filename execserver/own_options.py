"""The options of the server that change what its clients can ask for: their values, and the settings of them.

No other server has these options.  Loaded only where one is given.
"""

from __future__ import annotations

import re

from execserver import spans
from execserver.arguments import Mistake, Program
from execserver.leaving import failure
from execserver.listen_url import (
    DEFAULT_LISTEN_URL,
    ExecServerListenUrlParseError,
    WsListen,
    parse_listen_url,
)
from execserver.watching import WatchOptions

_BYTES = re.compile(r"([0-9]{1,9})([KMG]?)")
_UNITS = {"": 1, "K": 1024, "M": 1024**2, "G": 1024**3}
_REACHES = ("none", "loopback", "any")
_WRONG_TIME = "a number and s, m, h or d, such as 8h, or 0"


def overrides(program: Program, options: dict[str, str]) -> dict[str, float]:
    """Return the settings that the options change.  Raises Leave for a wrong value."""
    found: dict[str, float] = {}
    for name, value in options.items():
        if name not in _READERS:
            continue
        setting, read, expected = _READERS[name]
        number = read(value)
        if number is None:
            shown = program.table[name].shown
            raise program.mistaken(
                Mistake(f"invalid value '{value}' for '{shown}': expected {expected}", None)
            )
        found[setting] = number
    return found | _surviving(options) if "--survive-crash" in options else found


def _surviving(options: dict[str, str]) -> dict[str, float]:
    """Return the settings of --survive-crash.  Raises Leave for what it does not go with."""
    listen = options.get("--listen", DEFAULT_LISTEN_URL)
    if not listen.startswith(("ws://", "unix://")):
        raise failure(
            "--survive-crash needs a server that listens on ws:// or unix://",
            "give --listen ws://IP:PORT or unix:///PATH; TLS can end in a proxy in front of it",
        )
    for name in _NOT_SURVIVING:
        if name in options:
            raise failure(f"--survive-crash does not go with {name}: what that asks for would not survive")
    return {"survive_crash": 1, "spool_bytes": 0}


def watch_options(program: Program, options: dict[str, str]) -> WatchOptions:
    """Return what is laid over the server.  Raises Leave."""
    audit, is_required = options.get("--audit"), "--audit-required" in options
    if is_required and audit is None:
        raise failure("--audit-required says nothing without --audit <DIR>")
    if audit == "":
        raise program.mistaken(Mistake("invalid value '' for '--audit <DIR>': expected a folder", None))
    address = options.get("--metrics")
    metrics = None if address is None else metrics_address(program, address)
    rules = options.get("--network-rules")
    return WatchOptions(metrics, audit, is_required=is_required, network_rules=rules)


def metrics_address(program: Program, text: str) -> WsListen:
    """Return the address of --metrics.  Raises Leave where it is none, or one that others can reach."""
    try:
        listen = parse_listen_url(f"ws://{text}")
    except ExecServerListenUrlParseError:
        listen = None
    if not isinstance(listen, WsListen) or listen.tls:
        expected = "an address and a port, such as 127.0.0.1:9464"
        shown = f"invalid value '{text}' for '--metrics <IP:PORT>': expected {expected}"
        raise program.mistaken(Mistake(shown, None))
    if not listen.is_loopback:
        raise failure(
            f"--metrics {text}: others could read what this server does",
            "use an address of loopback, such as 127.0.0.1:9464, and have a collector on this machine ask it",
        )
    return listen


def _seconds(text: str) -> float | None:
    return 0.0 if text == "0" else spans.seconds(text)


def _size(text: str) -> float | None:
    found = _BYTES.fullmatch(text)
    if found is None:
        return None
    size = int(found[1]) * _UNITS[found[2]]
    return None if 0 < size < _UNITS["M"] else size


def _reach(text: str) -> float | None:
    return _REACHES.index(text) if text in _REACHES else None


# What of these a killed server has done cannot be taken over by the next one.
_NOT_SURVIVING = (
    *("--remote", "--upgrade-on-hup", "--limit-process", "--limit-session"),
    *("--network-rules", "--spool-max"),
)

_READERS = {
    "--keep-max": ("keep_max_s", _seconds, _WRONG_TIME),
    "--spool-max": ("spool_bytes", _size, "a size of at least 1M, such as 64M or 1G, or 0"),
    "--allow-forward": ("forward_reach", _reach, "none, loopback or any"),
}

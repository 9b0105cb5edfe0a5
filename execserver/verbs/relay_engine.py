"""The options of `execserver relay` about a shared engine, for all its verbs."""

from __future__ import annotations

import os
import re

from execserver.leaving import failure

TYPE_CHECKING = False
if TYPE_CHECKING:
    from execserver.relay.cluster.joining import Membership
    from execserver.relay.engine.client import Engine

_TIME = re.compile(r"(\d{1,7})([smh]?)")
_SECONDS = {"": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0}
_NEED_ENGINE = ("--node", "--node-url", "--engine-auth", "--engine-grace")


def membership(options: dict[str, str], node_url: str | None) -> Membership | None:
    """Return which cluster the options name, None without `--engine`.  Raises CannotServe, Leave."""
    if "--engine" not in options:
        for name in _NEED_ENGINE:
            if name in options:
                raise failure(f"{name} needs --engine")
        return None
    if "--state" in options:
        raise failure("--engine and --state: registrations are kept in one place, so give one of the two")
    import socket

    from execserver.relay.cluster.joining import Membership
    from execserver.relay.cluster.presence import NODE_NAME
    from execserver.relay.engine.address import Credentials, address_of, credentials_in

    node = options.get("--node") or socket.gethostname()
    if not NODE_NAME.fullmatch(node):
        raise failure(f"invalid --node `{node}`; expected up to 63 letters, digits, `.` and `-`")
    signed = credentials_in(options["--engine-auth"]) if "--engine-auth" in options else Credentials()
    return Membership(address_of(options["--engine"]), signed, node, node_url or "")


def grace_s(options: dict[str, str], default: float) -> float:
    """Return the seconds of `--engine-grace`."""
    text = options.get("--engine-grace")
    if text is None:
        return default
    found = _TIME.fullmatch(text)
    if found is None:
        raise failure(f"invalid --engine-grace `{text}`; expected a time such as 90s, 15m or 2h")
    return int(found[1]) * _SECONDS[found[2]]


def connected(options: dict[str, str]) -> Engine:
    """Return the engine of `--engine`, connected; whoever asked for it closes it.  Raises CannotServe."""
    from execserver.relay.cluster.joining import dialer
    from execserver.relay.engine.address import Credentials, address_of, credentials_in
    from execserver.relay.engine.client import Engine

    signed = credentials_in(options["--engine-auth"]) if "--engine-auth" in options else Credentials()
    engine = Engine(
        dialer(address_of(options["--engine"]), signed, os.environ), (), count=lambda result: None
    )
    engine.start()
    return engine

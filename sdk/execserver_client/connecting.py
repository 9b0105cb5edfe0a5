"""`connect`: from what a person calls a box to the box itself.

async with connect("dev") as box:
    print((await box.run(["uname", "-a"])).text)
"""

from __future__ import annotations

import os
import re
from typing import Final

from execserver_client._opening import Opening
from execserver_client._routes import find, route_to
from execserver_client.box import Box
from execserver_client.options import ConnectOptions

_SESSION_ID: Final = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_MS: Final = 1000
_LONGEST_KEEP_S: Final = 10**9


def connect(
    box: str | None = None,
    *,
    token: str | None = None,
    token_file: str | None = None,
    ca_file: str | None = None,
    options: ConnectOptions | None = None,
    name: str | None = None,
    keep: float | None = None,
    resume: str | None = None,
) -> Opening[Box]:
    """Connect to a box: `async with connect(...) as box`, or `box = await connect(...)` and `box.aclose()`.

    `box` is a name from `boxes.toml`, `ws://HOST:PORT`, `wss://HOST`, `unix:/PATH`, `ssh:HOST` or
    `relay:https://RELAY/ENVIRONMENT`; without one it is what `EXECSERVER_BOX` names, else a private server on
    this machine, started from the program that `EXECSERVER_PROGRAM` names or `execserver` on the `PATH`,
    which ends with the box.  A token that is not given comes from the boxes file or `EXECSERVER_TOKEN`.

    `keep` asks the server to keep the session for so many seconds without a connection, `name` gives it a
    name, and `resume` (an id or a name) goes on with such a session of an earlier client.

    Raises ValueError for both a token and a file with one, and for a `keep` that is no time; `InvalidBox`,
    `InvalidUrl` and `UnsupportedByServer` for what leads nowhere, `ConnectFailed`, `ConnectTimeout`,
    `ProtocolViolation`, and `RequestFailed` when the server refuses.
    """
    if token is not None and token_file is not None:
        raise ValueError("give token= or token_file=, not both")
    if keep is not None and not 0 <= keep <= _LONGEST_KEEP_S:
        raise ValueError(f"keep= is a number of seconds from 0 on, not {keep!r}")
    given = options or ConnectOptions()
    changes: dict[str, object] = {}
    if name is not None:
        changes["session_name"] = name
    if keep is not None:
        changes["keep_ms"] = round(keep * _MS)
    if resume is not None:
        is_id = _SESSION_ID.fullmatch(resume) is not None
        changes["resume_session_id" if is_id else "resume_session_name"] = resume
    return Opening(_connected(box, token, token_file, ca_file, given.replace(**changes)))


async def _connected(
    box: str | None, token: str | None, token_file: str | None, ca_file: str | None, options: ConnectOptions
) -> Box:
    if token is None and token_file is None:
        token, token_file = options.token, options.token_file
    found = find(box, token, token_file, os.environ)
    route = route_to(found, options.replace(ca_file=ca_file or found.ca_file or options.ca_file))
    made = Box(
        route.open_transport,
        route.options,
        can_resume=route.can_resume,
        pauses=route.pauses,
        home=route.home,
    )
    return await made.open()

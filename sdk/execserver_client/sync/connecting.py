"""`connect` for programs without asyncio."""

from __future__ import annotations

from execserver_client import connecting as asynchronous
from execserver_client.options import ConnectOptions
from execserver_client.sync import _shapes as shapes
from execserver_client.sync._portal import Portal
from execserver_client.sync.box import Box


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
) -> Box:
    """Connect to a box: `with connect(...) as box`, or `box = connect(...)` and `box.close()`.

    Takes and raises what `execserver_client.connect` does.  The box may be used from any thread.
    """
    portal = Portal()
    try:
        opened = portal.call(
            shapes.settle,
            lambda: asynchronous.connect(
                box,
                token=token,
                token_file=token_file,
                ca_file=ca_file,
                options=options,
                name=name,
                keep=keep,
                resume=resume,
            ),
        )
    except BaseException:
        portal.close()
        raise
    return Box(portal, opened)

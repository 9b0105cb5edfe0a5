"""Which requests of a connection may be worked on at the same time, where its server is asked to do so.

Requests for one process or one forwarded port keep their order, and so do those for files: all files
together, since two paths may name the same one.  Requests that only look at files are shared.  What waits
(`replies.Later`) has left its lane by then: a long poll delays neither input nor a signal.  A method without
an entry goes alone, so a new one keeps its order until somebody has decided about it.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any, Final, NamedTuple

from execserver.protocol import methods, own_methods
from execserver.protocol.methods import Method

FILES: Final = "files"


class Lane(NamedTuple):
    """The lane of a request; with `alone` nothing else of it is worked on meanwhile."""

    key: Hashable
    alone: bool


# Answered at once, or by waiting only: no lane and no greenlet of its own before that.
AT_ONCE = frozenset(
    method.name
    for method in (
        *(methods.ENVIRONMENT_INFO, methods.ENVIRONMENT_STATUS, methods.ENVIRONMENT_SANDBOX),
        *(methods.ENVIRONMENT_CONFIG_READ, methods.HTTP_REQUEST, methods.PROCESS_LIST),
        *(methods.CAPABILITY_ROOTS_DISCOVER_V1, methods.CAPABILITIES_DISCOVER_V2),
        *(own_methods.SESSION_LIST, own_methods.SESSION_PROCESSES, own_methods.PORT_LIST),
        own_methods.AUDIT_HEAD,
    )
)
_OF_FILES = {
    **dict.fromkeys(
        (
            *(methods.FS_READ_FILE.name, methods.FS_READ_BLOCK.name, methods.FS_GET_METADATA.name),
            *(methods.FS_CANONICALIZE.name, methods.FS_READ_DIRECTORY.name, methods.FS_WALK.name),
            *(own_methods.FS_GET_VERSION.name, own_methods.FS_HASH.name, own_methods.FS_GLOB.name),
            *(own_methods.FS_SEARCH.name, own_methods.FS_ARCHIVE.name, own_methods.FS_LIST.name),
            own_methods.FS_READ_MANY.name,
        ),
        Lane(FILES, alone=False),
    ),
    **dict.fromkeys(
        (
            *(methods.FS_WRITE_FILE.name, methods.FS_CREATE_DIRECTORY.name, methods.FS_REMOVE.name),
            *(methods.FS_COPY.name, methods.FS_OPEN.name, methods.FS_WRITE_BLOCK.name),
            *(methods.FS_CLOSE.name, methods.FS_WATCH_MISSING.name),
            *(own_methods.FS_RENAME.name, own_methods.FS_CHMOD.name, own_methods.FS_TOUCH.name),
            *(own_methods.FS_EXTRACT.name, own_methods.FS_WRITE_MANY.name, own_methods.FS_WATCH.name),
            *(own_methods.FS_WATCH_RESUME.name, own_methods.FS_UNWATCH.name),
            own_methods.FS_WRITE_PART.name,
        ),
        Lane(FILES, alone=True),
    ),
}
_OF_A_PROCESS = frozenset(
    method.name
    for method in (
        *(methods.PROCESS_START, methods.PROCESS_READ, methods.PROCESS_WRITE, methods.PROCESS_SIGNAL),
        *(methods.PROCESS_TERMINATE, methods.PROCESS_RESIZE, methods.PROCESS_CLOSE_STDIN),
        *(own_methods.PROCESS_LOG, own_methods.PROCESS_TAKE, own_methods.PROCESS_UNWATCH),
    )
)
_OF_A_PORT = frozenset(
    method.name
    for method in (
        *(own_methods.PORT_OPEN, own_methods.PORT_LISTEN, own_methods.PORT_DATA, own_methods.PORT_ACK),
        *(own_methods.PORT_RESUME, own_methods.PORT_CLOSE),
    )
)


def lane_of(method: Method[Any, Any], params: object) -> Lane | None:
    """Return the lane of a request, None for one that goes alone among all."""
    if method.name in _OF_A_PROCESS:
        return Lane(("process", getattr(params, "process_id")), alone=True)  # noqa: B009 - all of these have it
    if method.name in _OF_A_PORT:
        return Lane(("port", getattr(params, "port_id")), alone=True)  # noqa: B009 - and these that
    return _OF_FILES.get(method.name)

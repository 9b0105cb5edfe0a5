"""What a client's grant means for each method: the one table, and the sandbox limits that come of it.

A method without an entry is refused to every client whose grant takes something away, so a new one fails
closed until somebody has decided about it.
"""

from __future__ import annotations

import enum
import time
from functools import lru_cache

from execserver.access.identity import Grant, Identity
from execserver.access.tokens.holder import Holder
from execserver.handlers.context import Call
from execserver.protocol import methods, own_methods
from execserver.protocol.errors import InvalidRequest
from execserver.protocol.permissions import DISABLED, PermissionProfile
from execserver.protocol.sandbox import FileSystemSandboxContext
from execserver.sandbox.client_limits import Limits


class Reach(enum.Enum):
    """How far a method reaches beyond the client's own session and connection."""

    OWN = enum.auto()  # not at all: what it works on was made under the same grant, or is told to everybody
    SANDBOX = enum.auto()  # through a sandbox plan, over which the limits are laid
    NETWORK = enum.auto()  # into the network, from the server itself
    UNCONFINED = enum.auto()  # to files, from the server itself: not for clients with limits


REACH = {
    methods.INITIALIZE.name: Reach.OWN,  # a session is resumed by the identity that opened it, or not at all
    methods.PROCESS_START.name: Reach.SANDBOX,
    methods.PROCESS_READ.name: Reach.OWN,
    methods.PROCESS_WRITE.name: Reach.OWN,
    methods.PROCESS_SIGNAL.name: Reach.OWN,
    methods.PROCESS_TERMINATE.name: Reach.OWN,
    methods.PROCESS_RESIZE.name: Reach.OWN,
    methods.PROCESS_CLOSE_STDIN.name: Reach.OWN,
    methods.PROCESS_LIST.name: Reach.OWN,
    methods.ENVIRONMENT_INFO.name: Reach.OWN,
    methods.ENVIRONMENT_STATUS.name: Reach.OWN,
    methods.ENVIRONMENT_SANDBOX.name: Reach.OWN,
    # It reads where links in a project's folder lead, and an error shows lines of what it found there.
    methods.ENVIRONMENT_CONFIG_READ.name: Reach.UNCONFINED,
    methods.CAPABILITY_ROOTS_DISCOVER_V1.name: Reach.SANDBOX,
    methods.CAPABILITIES_DISCOVER_V2.name: Reach.SANDBOX,
    methods.FS_READ_FILE.name: Reach.SANDBOX,
    methods.FS_OPEN.name: Reach.SANDBOX,
    methods.FS_READ_BLOCK.name: Reach.OWN,
    methods.FS_WRITE_BLOCK.name: Reach.OWN,
    methods.FS_CLOSE.name: Reach.OWN,
    methods.FS_WRITE_FILE.name: Reach.SANDBOX,
    methods.FS_CREATE_DIRECTORY.name: Reach.SANDBOX,
    methods.FS_GET_METADATA.name: Reach.SANDBOX,
    methods.FS_CANONICALIZE.name: Reach.SANDBOX,
    methods.FS_READ_DIRECTORY.name: Reach.SANDBOX,
    methods.FS_REMOVE.name: Reach.SANDBOX,
    methods.FS_COPY.name: Reach.SANDBOX,
    methods.FS_WALK.name: Reach.SANDBOX,
    methods.FS_WATCH_MISSING.name: Reach.OWN,  # it tells that something appeared, where all may look anyway
    methods.HTTP_REQUEST.name: Reach.NETWORK,
    methods.COMMAND_EXEC.name: Reach.SANDBOX,
    methods.COMMAND_EXEC_WRITE.name: Reach.OWN,
    methods.COMMAND_EXEC_TERMINATE.name: Reach.OWN,
    # Of other sessions, those that a peer with the same grant has made.
    own_methods.SESSION_KEEP.name: Reach.OWN,
    own_methods.SESSION_LIST.name: Reach.OWN,
    own_methods.SESSION_END.name: Reach.OWN,
    own_methods.SESSION_PROCESSES.name: Reach.OWN,
    own_methods.PROCESS_WATCH.name: Reach.OWN,
    own_methods.PROCESS_UNWATCH.name: Reach.OWN,
    own_methods.PROCESS_TAKE.name: Reach.OWN,
    own_methods.PROCESS_LOG.name: Reach.OWN,
    own_methods.FS_GET_VERSION.name: Reach.SANDBOX,
    own_methods.FS_RENAME.name: Reach.SANDBOX,
    own_methods.FS_CHMOD.name: Reach.SANDBOX,
    own_methods.FS_TOUCH.name: Reach.SANDBOX,
    own_methods.FS_HASH.name: Reach.SANDBOX,
    own_methods.FS_GLOB.name: Reach.SANDBOX,
    own_methods.FS_SEARCH.name: Reach.SANDBOX,
    own_methods.FS_ARCHIVE.name: Reach.SANDBOX,
    own_methods.FS_EXTRACT.name: Reach.SANDBOX,
    own_methods.FS_LIST.name: Reach.SANDBOX,
    own_methods.FS_READ_MANY.name: Reach.SANDBOX,
    own_methods.FS_WRITE_MANY.name: Reach.SANDBOX,
    own_methods.FS_WRITE_PART.name: Reach.SANDBOX,
    own_methods.FS_WATCH.name: Reach.SANDBOX,
    own_methods.FS_WATCH_RESUME.name: Reach.OWN,
    own_methods.FS_UNWATCH.name: Reach.OWN,
    own_methods.PORT_OPEN.name: Reach.NETWORK,
    own_methods.PORT_LISTEN.name: Reach.NETWORK,
    own_methods.PORT_DATA.name: Reach.OWN,
    own_methods.PORT_ACK.name: Reach.OWN,
    own_methods.PORT_RESUME.name: Reach.OWN,
    own_methods.PORT_CLOSE.name: Reach.OWN,
    own_methods.PORT_LIST.name: Reach.NETWORK,
    own_methods.AUDIT_HEAD.name: Reach.OWN,  # a digest, of which nothing can be read
}

# What a request without a sandbox context asks for: everything, under which the limits are all that counts.
UNRESTRICTED = FileSystemSandboxContext(PermissionProfile(DISABLED, True))


@lru_cache(maxsize=256)
def limits_of(grant: Grant | None) -> Limits | None:
    """Return what a grant takes away, or None if that is nothing."""
    if grant is None or (grant.roots is None and not grant.read_only and grant.network):
        return None
    if grant.read_only:
        return Limits((), grant.network)
    roots = None if grant.roots is None else tuple([_native(root) for root in grant.roots])
    return Limits(roots, grant.network)


def _native(path: str) -> bytes:
    return path.encode("utf-8", "surrogateescape")  # as tokens have them, whatever the locale


def limits(call: Call) -> Limits | None:
    """Return the limits that are laid over everything this client asks for."""
    grant = call.connection.identity.grant
    return None if grant is None else limits_of(grant)


def check_granted(method: str, identity: Identity) -> None:
    """Raise InvalidRequest for a method that a grant does not allow, and for any once a token is over."""
    if isinstance(identity, Holder) and (reason := identity.lapsed(time.time())):
        raise InvalidRequest(reason)
    taken = limits_of(identity.grant)
    if taken is None:
        return
    reach = REACH.get(method)
    if reach is None or reach is Reach.UNCONFINED:
        raise InvalidRequest(f"{method} is not granted to a client with limits")
    if reach is Reach.NETWORK and not taken.network:
        raise InvalidRequest(f"{method} needs the network, which is not granted to this client")

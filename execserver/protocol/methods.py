"""The one table of methods and notifications: routing, validation, state checks and docs/protocol.md read it.

A method that is not here does not exist.  A new one needs its records, its entry here, one handler and one
test.  `since` names the contract in which a method or notification first appeared: the month of the reference
server's contract, `0.169.0` for what only the newest one has, `execserver` for an extension.
"""

from __future__ import annotations

from typing import Any

from execserver.protocol import discovery, files, http, legacy, network
from execserver.protocol.method import Family as Family
from execserver.protocol.method import Method as Method
from execserver.protocol.method import NotificationMethod as NotificationMethod
from execserver.protocol.method import ServerRequest as ServerRequest
from execserver.protocol.own_methods import OWN_METHODS, OWN_NOTIFICATIONS
from execserver.protocol.process_methods import ENVIRONMENT_INFO as ENVIRONMENT_INFO
from execserver.protocol.process_methods import ENVIRONMENT_SANDBOX as ENVIRONMENT_SANDBOX
from execserver.protocol.process_methods import ENVIRONMENT_STATUS as ENVIRONMENT_STATUS
from execserver.protocol.process_methods import INITIALIZE as INITIALIZE
from execserver.protocol.process_methods import INITIALIZED as INITIALIZED
from execserver.protocol.process_methods import PROCESS_CLOSE_STDIN as PROCESS_CLOSE_STDIN
from execserver.protocol.process_methods import PROCESS_CLOSED as PROCESS_CLOSED
from execserver.protocol.process_methods import PROCESS_EXITED as PROCESS_EXITED
from execserver.protocol.process_methods import PROCESS_LIST as PROCESS_LIST
from execserver.protocol.process_methods import PROCESS_OUTPUT as PROCESS_OUTPUT
from execserver.protocol.process_methods import PROCESS_READ as PROCESS_READ
from execserver.protocol.process_methods import PROCESS_RESIZE as PROCESS_RESIZE
from execserver.protocol.process_methods import PROCESS_SIGNAL as PROCESS_SIGNAL
from execserver.protocol.process_methods import PROCESS_START as PROCESS_START
from execserver.protocol.process_methods import PROCESS_TERMINATE as PROCESS_TERMINATE
from execserver.protocol.process_methods import PROCESS_WRITE as PROCESS_WRITE

ENVIRONMENT_CONFIG_READ = Method(
    "environmentConfig/read",
    discovery.EnvironmentConfigReadParams,
    discovery.EnvironmentConfigReadResponse,
    family=Family.ENVIRONMENT_CONFIG,
    since="0.169.0",
    doc="Return the wanted parts of the machine's configuration files.",
)
CAPABILITY_ROOTS_DISCOVER_V1 = Method(
    "capabilityRoots/discoverV1",
    discovery.WireCapabilityRootsDiscoverParams,
    discovery.CapabilityRootsDiscoverResponse,
    family=Family.CAPABILITY_DISCOVERY,
    since="0.169.0",
    doc="Return the files of plugins and skills in folders.",
)
CAPABILITIES_DISCOVER_V2 = Method(
    "capabilities/discoverV2",
    discovery.DiscoverV2CapabilitiesRequest,
    discovery.DiscoverV2CapabilitiesResponse,
    family=Family.CAPABILITY_DISCOVERY,
    since="0.169.0",
    doc="Return the plugins and skills that the machine has for all projects.",
)
FS_READ_FILE = Method(
    "fs/readFile",
    files.FsReadFileParams,
    files.FsReadFileResponse,
    family=Family.FILESYSTEM,
    since="2026-03",
    doc="Return the whole content of a regular file.",
)
FS_OPEN = Method(
    "fs/open",
    files.FsOpenParams,
    files.FsOpenResponse,
    family=Family.FILESYSTEM,
    since="2026-06",
    doc="Open a regular file for reading, or for writing with mode `replace`.",
)
FS_READ_BLOCK = Method(
    "fs/readBlock",
    files.FsReadBlockParams,
    files.FsReadBlockResponse,
    family=Family.FILESYSTEM,
    since="2026-06",
    doc="Read bytes at an offset of an open file.",
)
FS_WRITE_BLOCK = Method(
    "fs/writeBlock",
    files.FsWriteBlockParams,
    files.FsWriteBlockResponse,
    family=Family.FILESYSTEM,
    since="0.169.0",
    doc="Write bytes at an offset of an open file.",
)
FS_CLOSE = Method(
    "fs/close",
    files.FsCloseParams,
    files.FsCloseResponse,
    family=Family.FILESYSTEM,
    since="2026-06",
    doc="Close an open file.",
)
FS_WRITE_FILE = Method(
    "fs/writeFile",
    files.FsWriteFileParams,
    files.FsWriteFileResponse,
    family=Family.FILESYSTEM,
    since="2026-03",
    doc="Create or replace a file.",
)
FS_CREATE_DIRECTORY = Method(
    "fs/createDirectory",
    files.FsCreateDirectoryParams,
    files.FsCreateDirectoryResponse,
    family=Family.FILESYSTEM,
    since="2026-03",
    doc="Make a directory, with its parents unless told otherwise.",
)
FS_GET_METADATA = Method(
    "fs/getMetadata",
    files.FsGetMetadataParams,
    files.FsGetMetadataResponse,
    family=Family.FILESYSTEM,
    since="2026-03",
    doc="Tell kind, size and times of what a path leads to.",
)
FS_CANONICALIZE = Method(
    "fs/canonicalize",
    files.FsCanonicalizeParams,
    files.FsCanonicalizeResponse,
    family=Family.FILESYSTEM,
    since="2026-06",
    doc="Resolve every link in a path.",
)
FS_READ_DIRECTORY = Method(
    "fs/readDirectory",
    files.FsReadDirectoryParams,
    files.FsReadDirectoryResponse,
    family=Family.FILESYSTEM,
    since="2026-03",
    doc="List the names in a directory.",
)
FS_REMOVE = Method(
    "fs/remove",
    files.FsRemoveParams,
    files.FsRemoveResponse,
    family=Family.FILESYSTEM,
    since="2026-03",
    doc="Remove a file, a link or a directory tree.",
)
FS_COPY = Method(
    "fs/copy",
    files.FsCopyParams,
    files.FsCopyResponse,
    family=Family.FILESYSTEM,
    since="2026-03",
    doc="Copy a file, a link or a directory tree.",
)
FS_WALK = Method(
    "fs/walk",
    files.FsWalkParams,
    files.FsWalkResponse,
    family=Family.FILESYSTEM,
    since="0.169.0",
    doc="List a directory and everything below it, level by level.",
)
FS_WATCH_MISSING = Method(
    "fs/watchMissing",
    files.FsWatchMissingParams,
    files.FsWatchMissingResponse,
    family=Family.FILESYSTEM,
    since="0.169.0",
    doc="Watch paths that do not exist, instead of those watched on this connection before.",
)
HTTP_REQUEST = Method(
    "http/request",
    http.HttpRequestParams,
    http.HttpRequestResponse,
    family=Family.HTTP,
    since="2026-05",
    doc="Make an HTTP request from this machine.",
)
COMMAND_EXEC = Method(
    "command/exec",
    legacy.CommandExecParams,
    legacy.CommandExecResponse,
    family=Family.EXEC,
    since="2026-03 text",
    doc="Run a program, in the words of the first contract.",
)
COMMAND_EXEC_WRITE = Method(
    "command/exec/write",
    legacy.CommandExecWriteParams,
    legacy.CommandExecWriteResponse,
    family=Family.EXEC,
    since="2026-03 text",
    doc="Queue bytes for the input of a process, in the words of the first contract.",
)
COMMAND_EXEC_TERMINATE = Method(
    "command/exec/terminate",
    legacy.CommandExecTerminateParams,
    legacy.CommandExecTerminateResponse,
    family=Family.EXEC,
    since="2026-03 text",
    doc="Kill a process, in the words of the first contract.",
)

FS_MISSING_CHANGED = NotificationMethod(
    "fs/missingChanged",
    files.FsMissingChangedNotification,
    since="0.169.0",
    doc="A path that was missing may exist now; its watch is over.",
)
NETWORK_POLICY_DECISION = NotificationMethod(
    "network/policyDecision",
    network.NetworkPolicyDecisionNotification,
    since="0.169.0",
    doc="The network proxy of a process has decided about a connection.",
)
NETWORK_POLICY_REQUEST = ServerRequest(
    "network/policyRequest",
    network.NetworkPolicyRequestParams,
    network.NetworkPolicyResponse,
    since="0.169.0",
    doc="Ask whether a process may connect to a host that no rule allows.",
)
HTTP_REQUEST_BODY_DELTA = NotificationMethod(
    "http/request/bodyDelta",
    http.HttpRequestBodyDeltaNotification,
    since="2026-05",
    doc="A piece of a streamed HTTP body.",
)
COMMAND_EXEC_OUTPUT_DELTA = NotificationMethod(
    "command/exec/outputDelta",
    legacy.CommandExecOutputDeltaNotification,
    since="2026-03 text",
    doc="A process of the first contract wrote something.",
)
COMMAND_EXEC_EXITED = NotificationMethod(
    "command/exec/exited",
    legacy.CommandExecExitedNotification,
    since="2026-03 text",
    doc="A process of the first contract ended.",
)

_CONTRACT: tuple[Method[Any, Any], ...] = (
    INITIALIZE,
    PROCESS_START,
    PROCESS_READ,
    PROCESS_WRITE,
    PROCESS_SIGNAL,
    PROCESS_TERMINATE,
    PROCESS_RESIZE,
    PROCESS_CLOSE_STDIN,
    PROCESS_LIST,
    ENVIRONMENT_INFO,
    ENVIRONMENT_STATUS,
    ENVIRONMENT_SANDBOX,
    ENVIRONMENT_CONFIG_READ,
    CAPABILITY_ROOTS_DISCOVER_V1,
    CAPABILITIES_DISCOVER_V2,
    FS_READ_FILE,
    FS_OPEN,
    FS_READ_BLOCK,
    FS_WRITE_BLOCK,
    FS_CLOSE,
    FS_WRITE_FILE,
    FS_CREATE_DIRECTORY,
    FS_GET_METADATA,
    FS_CANONICALIZE,
    FS_READ_DIRECTORY,
    FS_REMOVE,
    FS_COPY,
    FS_WALK,
    FS_WATCH_MISSING,
    HTTP_REQUEST,
    COMMAND_EXEC,
    COMMAND_EXEC_WRITE,
    COMMAND_EXEC_TERMINATE,
)
METHODS: dict[str, Method[Any, Any]] = {method.name: method for method in (*_CONTRACT, *OWN_METHODS)}

_OF_CONTRACT: tuple[NotificationMethod[Any], ...] = (
    INITIALIZED,
    PROCESS_OUTPUT,
    PROCESS_EXITED,
    PROCESS_CLOSED,
    FS_MISSING_CHANGED,
    NETWORK_POLICY_DECISION,
    HTTP_REQUEST_BODY_DELTA,
    COMMAND_EXEC_OUTPUT_DELTA,
    COMMAND_EXEC_EXITED,
)
NOTIFICATIONS: dict[str, NotificationMethod[Any]] = {
    notification.name: notification for notification in (*_OF_CONTRACT, *OWN_NOTIFICATIONS)
}
SERVER_REQUESTS: dict[str, ServerRequest[Any, Any]] = {NETWORK_POLICY_REQUEST.name: NETWORK_POLICY_REQUEST}

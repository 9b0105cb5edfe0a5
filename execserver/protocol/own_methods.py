"""The methods and notifications of kept sessions, watched processes and forwarded ports.

Only this server has them.  `methods` puts them into its table.
"""

from __future__ import annotations

from typing import Any

from execserver.protocol import audit, batches, changes, file_watches, ports, session, trees, watching
from execserver.protocol.method import Family, Method, NotificationMethod

_SINCE = "execserver"


SESSION_KEEP = Method(
    "session/keep",
    session.SessionKeepParams,
    session.KeptSession,
    family=Family.SESSION,
    since=_SINCE,
    doc="Say how long the session of this connection is to stay without one, and name it.",
    extension=True,
)
SESSION_LIST = Method(
    "session/list",
    session.NoParams,
    session.SessionListResponse,
    family=Family.SESSION,
    since=_SINCE,
    doc="List the session of this connection and the kept or named ones of the same peer.",
    extension=True,
)
SESSION_END = Method(
    "session/end",
    session.SessionEndParams,
    session.SessionEndResponse,
    family=Family.SESSION,
    since=_SINCE,
    doc="End a detached session of the same peer, with its processes.",
    extension=True,
)
SESSION_PROCESSES = Method(
    "session/processes",
    session.NoParams,
    watching.SessionProcessesResponse,
    family=Family.EXEC,
    since=_SINCE,
    doc="List the processes of all sessions that `session/list` shows.",
    extension=True,
)
PROCESS_WATCH = Method(
    "process/watch",
    watching.WatchProcessParams,
    watching.WatchProcessResponse,
    family=Family.EXEC,
    since=_SINCE,
    doc="Follow a process of another session, which then has an id in this one, too.",
    extension=True,
)
PROCESS_UNWATCH = Method(
    "process/unwatch",
    watching.UnwatchParams,
    watching.UnwatchResponse,
    family=Family.EXEC,
    since=_SINCE,
    doc="Follow a process no longer.",
    extension=True,
)
PROCESS_TAKE = Method(
    "process/take",
    watching.TakeParams,
    watching.TakeResponse,
    family=Family.EXEC,
    since=_SINCE,
    doc="Be the session that writes to a process.",
    extension=True,
)

AUDIT_HEAD = Method(
    "audit/head",
    session.NoParams,
    audit.AuditHeadResponse,
    family=Family.SESSION,
    since=_SINCE,
    doc="Return where the audit log stands; whoever keeps it can show later that the log was not changed.",
    extension=True,
)
PROCESS_LOG = Method(
    "process/log",
    watching.LogParams,
    watching.LogResponse,
    family=Family.EXEC,
    since=_SINCE,
    doc="Return a page of all output of a process that is kept, in memory and on disk.",
    extension=True,
)

PORT_OPEN = Method(
    "port/open",
    ports.PortConnectParams,
    ports.PortOpenResponse,
    family=Family.EXEC,
    since=_SINCE,
    doc="Open a TCP connection from the server's machine.",
    extension=True,
)
PORT_LISTEN = Method(
    "port/listen",
    ports.PortOpenParams,
    ports.PortListenResponse,
    family=Family.EXEC,
    since=_SINCE,
    doc="Listen on the server's machine, and pass connections on.",
    extension=True,
)
PORT_DATA = Method(
    "port/data",
    ports.PortDataParams,
    ports.PortReceivedResponse,
    family=Family.EXEC,
    since=_SINCE,
    doc="Write bytes to a connection.",
    extension=True,
)
PORT_ACK = Method(
    "port/ack",
    ports.PortAckParams,
    ports.PortEmptyResponse,
    family=Family.EXEC,
    since=_SINCE,
    doc="Tell how many bytes of a connection were taken.",
    extension=True,
)
PORT_RESUME = Method(
    "port/resume",
    ports.PortAckParams,
    ports.PortReceivedResponse,
    family=Family.EXEC,
    since=_SINCE,
    doc="Go on with a connection after the client was away.",
    extension=True,
)
PORT_CLOSE = Method(
    "port/close",
    ports.PortIdParams,
    ports.PortEmptyResponse,
    family=Family.EXEC,
    since=_SINCE,
    doc="End a connection or a listener.",
    extension=True,
)
PORT_LIST = Method(
    "port/list",
    session.NoParams,
    ports.PortListResponse,
    family=Family.EXEC,
    since=_SINCE,
    doc="List who listens on the machine, and the connections of the session.",
    extension=True,
)
FS_GET_VERSION = Method(
    "fs/getVersion",
    changes.FsGetVersionParams,
    changes.FsGetVersionResponse,
    family=Family.FILESYSTEM,
    since=_SINCE,
    doc="Tell the version and the permissions of a regular file.",
    extension=True,
)
FS_RENAME = Method(
    "fs/rename",
    changes.FsRenameParams,
    changes.FsRenameResponse,
    family=Family.FILESYSTEM,
    since=_SINCE,
    doc="Give a file or directory another name.",
    extension=True,
)
FS_CHMOD = Method(
    "fs/chmod",
    changes.FsChmodParams,
    changes.FsChmodResponse,
    family=Family.FILESYSTEM,
    since=_SINCE,
    doc="Set the permissions of a file or directory.",
    extension=True,
)
FS_TOUCH = Method(
    "fs/touch",
    changes.FsTouchParams,
    changes.FsTouchResponse,
    family=Family.FILESYSTEM,
    since=_SINCE,
    doc="Set the times of a file or directory, and make an empty file where there is none.",
    extension=True,
)
FS_HASH = Method(
    "fs/hash",
    trees.FsHashParams,
    trees.FsHashResponse,
    family=Family.FILESYSTEM,
    since=_SINCE,
    doc="Tell the hashes of a file, or of the files below a directory.",
    extension=True,
)
FS_GLOB = Method(
    "fs/glob",
    trees.FsGlobParams,
    trees.FsGlobResponse,
    family=Family.FILESYSTEM,
    since=_SINCE,
    doc="Find files and directories below a directory by a pattern.",
    extension=True,
)
FS_SEARCH = Method(
    "fs/search",
    trees.FsSearchParams,
    trees.FsSearchResponse,
    family=Family.FILESYSTEM,
    since=_SINCE,
    doc="Search the lines of files for a regular expression.",
    extension=True,
)
FS_ARCHIVE = Method(
    "fs/archive",
    trees.FsArchiveParams,
    trees.FsArchiveResponse,
    family=Family.FILESYSTEM,
    since=_SINCE,
    doc="Pack a file, or what is in a directory, as a tar archive.",
    extension=True,
)
FS_EXTRACT = Method(
    "fs/extract",
    trees.FsExtractParams,
    trees.FsExtractResponse,
    family=Family.FILESYSTEM,
    since=_SINCE,
    doc="Unpack a chunk of a tar archive into a directory.",
    extension=True,
)
FS_LIST = Method(
    "fs/list",
    batches.FsListParams,
    batches.FsListResponse,
    family=Family.FILESYSTEM,
    since=_SINCE,
    doc="Tell kinds, sizes, times and permissions of all that is below a directory.",
    extension=True,
)
FS_READ_MANY = Method(
    "fs/readMany",
    batches.FsReadManyParams,
    batches.FsReadManyResponse,
    family=Family.FILESYSTEM,
    since=_SINCE,
    doc="Read many small files.",
    extension=True,
)
FS_WRITE_MANY = Method(
    "fs/writeMany",
    batches.FsWriteManyParams,
    batches.FsWriteManyResponse,
    family=Family.FILESYSTEM,
    since=_SINCE,
    doc="Make, replace and remove many files, directories and symlinks, each as a whole.",
    extension=True,
)
FS_WRITE_PART = Method(
    "fs/writePart",
    batches.FsWritePartParams,
    batches.FsWritePartResponse,
    family=Family.FILESYSTEM,
    since=_SINCE,
    doc="Add a piece to a large file, which appears once it is whole.",
    extension=True,
)
FS_WATCH = Method(
    "fs/watch",
    file_watches.FsWatchParams,
    file_watches.FsWatchResponse,
    family=Family.FILESYSTEM,
    since=_SINCE,
    doc="Watch a directory, with all below it.",
    extension=True,
)
FS_WATCH_RESUME = Method(
    "fs/watchResume",
    file_watches.FsWatchResumeParams,
    file_watches.FsWatchResumeResponse,
    family=Family.FILESYSTEM,
    since=_SINCE,
    doc="Go on with a watch after the client was away.",
    extension=True,
)
FS_UNWATCH = Method(
    "fs/unwatch",
    file_watches.FsUnwatchParams,
    file_watches.FsUnwatchResponse,
    family=Family.FILESYSTEM,
    since=_SINCE,
    doc="End a watch.",
    extension=True,
)

PROCESS_TAKEN = NotificationMethod(
    "process/taken",
    watching.TakenNotification,
    since=_SINCE,
    doc="Another session writes to a process now.",
)
PROCESS_GAP = NotificationMethod(
    "process/gap",
    watching.GapNotification,
    since=_SINCE,
    doc="A watcher was too slow, and some events will not come.",
)

PORT_BYTES = NotificationMethod(
    "port/bytes",
    ports.PortDataNotification,
    since=_SINCE,
    doc="A connection has received something.",
)
PORT_CLOSED = NotificationMethod(
    "port/closed",
    ports.PortClosedNotification,
    since=_SINCE,
    doc="A connection has ended.",
)
PORT_ACCEPTED = NotificationMethod(
    "port/accepted",
    ports.PortAcceptedNotification,
    since=_SINCE,
    doc="Somebody has connected to a listener.",
)

FS_CHANGES = NotificationMethod(
    "fs/changes",
    file_watches.FsChangesNotification,
    since=_SINCE,
    doc="What has happened in a watched directory.",
)

OWN_METHODS: tuple[Method[Any, Any], ...] = (
    SESSION_KEEP,
    SESSION_LIST,
    SESSION_END,
    SESSION_PROCESSES,
    PROCESS_WATCH,
    PROCESS_UNWATCH,
    PROCESS_TAKE,
    PROCESS_LOG,
    PORT_OPEN,
    PORT_LISTEN,
    PORT_DATA,
    PORT_ACK,
    PORT_RESUME,
    PORT_CLOSE,
    PORT_LIST,
    FS_GET_VERSION,
    FS_RENAME,
    FS_CHMOD,
    FS_TOUCH,
    FS_HASH,
    FS_GLOB,
    FS_SEARCH,
    FS_ARCHIVE,
    FS_EXTRACT,
    FS_LIST,
    FS_READ_MANY,
    FS_WRITE_MANY,
    FS_WRITE_PART,
    FS_WATCH,
    FS_WATCH_RESUME,
    FS_UNWATCH,
    AUDIT_HEAD,
)
OWN_NOTIFICATIONS: tuple[NotificationMethod[Any], ...] = (
    PROCESS_TAKEN,
    PROCESS_GAP,
    PORT_BYTES,
    PORT_CLOSED,
    PORT_ACCEPTED,
    FS_CHANGES,
)

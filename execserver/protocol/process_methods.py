"""The methods of sessions and processes and of the machine itself: what every client uses.

`methods` puts them into its table.  They stand apart because the records of all methods take 5 ms to load.
"""

from __future__ import annotations

from execserver.protocol import environment, process, session
from execserver.protocol.method import Family, Method, NotificationMethod

INITIALIZE = Method(
    "initialize",
    session.InitializeParams,
    session.InitializeResponse,
    family=Family.SESSION,
    since="2026-03",
    doc="Open a session, or attach to a detached one.",
)
PROCESS_START = Method(
    "process/start",
    process.ExecParams,
    process.ExecResponse,
    family=Family.EXEC,
    since="2026-03",
    doc="Run a program on pipes or on a terminal of its own.",
)
PROCESS_READ = Method(
    "process/read",
    process.ReadParams,
    process.ReadResponse,
    family=Family.EXEC,
    since="2026-03",
    doc="Return retained output after a cursor, waiting up to waitMs for more.",
)
PROCESS_WRITE = Method(
    "process/write",
    process.WriteParams,
    process.WriteResponse,
    family=Family.EXEC,
    since="2026-03",
    doc="Queue bytes for the input of a process, once per writeId.",
)
PROCESS_SIGNAL = Method(
    "process/signal",
    process.SignalParams,
    process.SignalResponse,
    family=Family.EXEC,
    since="2026-06",
    doc="Send a signal to the process group of a process.",
)
PROCESS_TERMINATE = Method(
    "process/terminate",
    process.TerminateParams,
    process.TerminateResponse,
    family=Family.EXEC,
    since="2026-03",
    doc="Kill the process group of a process at once.",
)
PROCESS_RESIZE = Method(
    "process/resize",
    process.ResizeParams,
    process.ResizeResponse,
    family=Family.EXEC,
    since="execserver",
    doc="Change the size of the terminal of a process.",
    extension=True,
)
PROCESS_CLOSE_STDIN = Method(
    "process/closeStdin",
    process.CloseStdinParams,
    process.CloseStdinResponse,
    family=Family.EXEC,
    since="execserver",
    doc="Let a process see the end of its input once everything queued is written.",
    extension=True,
)
PROCESS_LIST = Method(
    "process/list",
    session.NoParams,
    process.ProcessListResponse,
    family=Family.EXEC,
    since="execserver",
    doc="List the processes of the session with what they use.",
    extension=True,
)
ENVIRONMENT_INFO = Method(
    "environment/info",
    session.NoParams,
    environment.EnvironmentInfo,
    family=Family.ENVIRONMENT_INFO,
    since="2026-06",
    doc="Describe the machine and the server's abilities.",
)
ENVIRONMENT_STATUS = Method(
    "environment/status",
    session.NoParams,
    environment.EnvironmentStatusResponse,
    family=Family.ENVIRONMENT_STATUS,
    since="0.169.0",
    doc="Tell that the machine takes work.",
)
ENVIRONMENT_SANDBOX = Method(
    "environment/sandbox",
    session.NoParams,
    environment.EnvironmentSandboxResponse,
    family=Family.ENVIRONMENT_INFO,
    since="execserver",
    doc="Tell which sandbox works on the machine, what it enforces, and what is in the way of the rest.",
    extension=True,
)

INITIALIZED = NotificationMethod(
    "initialized",
    session.InitializedNotification,
    since="2026-03",
    doc="The client has taken note of its session and may call everything.",
    to_server=True,
)
PROCESS_OUTPUT = NotificationMethod(
    "process/output",
    process.ExecOutputDeltaNotification,
    since="2026-03",
    doc="A process wrote something.",
)
PROCESS_EXITED = NotificationMethod(
    "process/exited",
    process.ExecExitedNotification,
    since="2026-03",
    doc="A process ended; output may still follow.",
)
PROCESS_CLOSED = NotificationMethod(
    "process/closed",
    process.ExecClosedNotification,
    since="2026-04",
    doc="All output of a process was sent.",
)

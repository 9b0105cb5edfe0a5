"""Deep Agents: a sandbox backend whose commands and files are those of a box.

    with ExecserverSandbox("dev", workdir="/home/me/project") as backend:
        agent = create_deep_agent(model=..., backend=backend)

Paths are the box's own.  The methods block and may be called from any thread; their asynchronous twins end
the command when they are cancelled.
"""

from __future__ import annotations

import asyncio
import posixpath
import threading
import time
import uuid
from collections.abc import Mapping
from types import TracebackType
from typing import Any, Final, Self

from deepagents.backends.protocol import (
    FILE_NOT_FOUND,
    INVALID_PATH,
    IS_DIRECTORY,
    PERMISSION_DENIED,
    ExecuteResponse,
    FileDownloadResponse,
    FileUploadResponse,
)
from deepagents.backends.sandbox import BaseSandbox

from execserver_adapters._environments import env_policy_of
from execserver_adapters._kept import Kept
from execserver_adapters._os_errors import as_os_error
from execserver_adapters._policies import checked, sandbox_of
from execserver_client import (
    Closed,
    ExecServerError,
    Exited,
    FileTooLarge,
    Output,
    OutputGap,
    RequestFailed,
    WaitTimeout,
)
from execserver_client.sync import Box, Process, connect

__all__ = ["ExecserverSandbox"]

_TIMED_OUT: Final = 124  # as `timeout` of the coreutils says it
_NOT_STARTED: Final = 126
_SETTLE_S: Final = 0.3  # for output behind the end of a shell whose own children hold its pipes


class ExecserverSandbox(BaseSandbox):
    """One connection to a box, and one working folder there."""

    def __init__(
        self,
        box: str | None = None,
        *,
        workdir: str | None = None,
        sandbox: str | Mapping[str, Any] = "workspace-write",
        network: bool = False,
        env: Mapping[str, str] | None = None,
        inherit_env: str = "core",
        timeout: int = 30 * 60,
        max_output_bytes: int = 1024 * 1024,
        max_file_bytes: int = 64 * 1024 * 1024,
        **connecting: Any,
    ) -> None:
        """Connect; `box` and `connecting` (`token`, `keep`, `resume`, ...) are those of `connect`.

        `workdir` is a folder of the box, made if it is missing; None makes one below `/tmp` that `close`
        removes.  `sandbox` confines commands and file transfers: `workspace-write`, `read-only`,
        `full-access`, or the contract's object.  `network` opens it to the network.  `env` is set over what
        commands inherit of the server's environment (`inherit_env`: `core`, `all`, `none`).  `timeout` is in
        seconds, for a command that names none; 0 is no limit.  Raises ValueError, and what `connect` does.
        """
        checked(sandbox)
        if workdir is not None and not posixpath.isabs(workdir):
            raise ValueError(f"the working folder on the box must be absolute: {workdir!r}")
        self._own_folder = workdir is None
        self.workdir = workdir or f"/tmp/execserver-agent-{uuid.uuid4().hex}"  # of the box, and nobody's yet
        confined = sandbox_of(sandbox, [self.workdir], network=network)
        self._sandbox = None if confined is None else confined.context(self.workdir)
        self._environment = dict(env or {}), env_policy_of(inherit_env)
        self._timeout = timeout
        self._limits = max_output_bytes, max_file_bytes
        self._box: Box = connect(box, **connecting)
        try:
            self._box.files.mkdir(self.workdir, parents=True)
            if self._own_folder:
                self._box.files.chmod(self.workdir, 0o700)
        except BaseException:
            self._box.close()
            raise

    @property
    def id(self) -> str:
        """The id of the box's session: `resume` of another backend attaches it again if it is kept."""
        return self._box.session_id

    def execute(self, command: str, *, timeout: int | None = None) -> ExecuteResponse:
        """Run a command in a shell, and return both its streams in one, in the order they came.

        Of much output the beginning and the end are kept.  Raises `ExecServerError` if the box is lost.
        """
        return self._run(command, self._seconds(timeout), _Stopped())

    async def aexecute(self, command: str, *, timeout: int | None = None) -> ExecuteResponse:
        """As `execute`; a cancellation ends the command."""
        stopped = _Stopped()
        try:
            return await asyncio.to_thread(self._run, command, self._seconds(timeout), stopped)
        except asyncio.CancelledError:
            await asyncio.shield(asyncio.to_thread(stopped.stop))
            raise

    def upload_files(self, files: list[tuple[str, bytes]]) -> list[FileUploadResponse]:
        """Write files and the folders they lie in; each has an answer of its own."""
        return [FileUploadResponse(path=path, error=self._upload(path, content)) for path, content in files]

    def download_files(self, paths: list[str]) -> list[FileDownloadResponse]:
        """Read files; each has an answer of its own."""
        return [self._download(path) for path in paths]

    def close(self) -> None:
        """Remove the working folder if it was made for this, and end the session.  May be called again."""
        try:
            if self._own_folder:
                self._own_folder = False
                self._box.files.remove(self.workdir, recursive=True, missing_ok=True)
        except ExecServerError:
            pass  # the box is gone, and the folder stays there
        finally:
            self._box.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _seconds(self, timeout: int | None) -> float | None:
        chosen = self._timeout if timeout is None else timeout
        if chosen < 0:
            raise ValueError(f"timeout must not be negative: {chosen}")
        return chosen or None

    def _run(self, command: str, seconds: float | None, stopped: _Stopped) -> ExecuteResponse:
        env, policy = self._environment
        try:
            process = self._box.start(
                ["sh", "-c", command], cwd=self.workdir, env=env, env_policy=policy, sandbox=self._sandbox
            )
        except RequestFailed as error:
            return ExecuteResponse(output=f"Error: {error.message}", exit_code=_NOT_STARTED)
        limit, _ = self._limits
        kept = Kept(limit // 2, limit // 2)
        stopped.begin(process)
        try:
            status = _follow(process, kept, seconds)
        except WaitTimeout:
            process.terminate()
            note = f"\nError: the command timed out after {seconds:g} s and was ended."
            return ExecuteResponse(kept.text() + note, _TIMED_OUT, truncated=bool(kept.left_out))
        except BaseException:
            stopped.stop()
            raise
        return ExecuteResponse(kept.text(), status, truncated=bool(kept.left_out))

    def _upload(self, path: str, content: bytes) -> str | None:
        if not _is_path(path):
            return INVALID_PATH
        try:
            self._box.files.mkdir(posixpath.dirname(path), parents=True, sandbox=self._sandbox)
            self._box.files.write(path, content, sandbox=self._sandbox)
        except RequestFailed as error:
            return _reason(error, path)
        return None

    def _download(self, path: str) -> FileDownloadResponse:
        if not _is_path(path):
            return FileDownloadResponse(path=path, error=INVALID_PATH)
        _, limit = self._limits
        try:
            content = self._box.files.read(path, sandbox=self._sandbox, max_bytes=limit)
        except FileTooLarge:
            return FileDownloadResponse(path=path, error=f"the file has more than {limit} bytes")
        except RequestFailed as error:
            return FileDownloadResponse(path=path, error=self._why(error, path))
        return FileDownloadResponse(path=path, content=content)

    def _why(self, error: RequestFailed, path: str) -> str:
        """Return why a file cannot be read; of a folder the server says only that it is no file."""
        try:
            is_folder = self._box.files.stat(path, sandbox=self._sandbox).is_directory
        except RequestFailed:
            is_folder = False
        return IS_DIRECTORY if is_folder else _reason(error, path)


class _Stopped:
    """Ends a command from another thread, also if it is only about to start."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: Process | None = None
        self._wanted = False

    def begin(self, process: Process) -> None:
        """Note the process, and end it if that is wanted already."""
        with self._lock:
            self._process = process
            wanted = self._wanted
        if wanted:
            self.stop()

    def stop(self) -> None:
        """End the process."""
        with self._lock:
            self._wanted = True
            process = self._process
        if process is not None:
            try:
                process.terminate()
            except ExecServerError:
                pass  # the connection is over, and with it the process


def _follow(process: Process, kept: Kept, seconds: float | None) -> int | None:
    """Collect output until the process has ended, and for a moment what its children still print.

    Returns its status.  Raises `WaitTimeout`.
    """
    deadline = None if seconds is None else time.monotonic() + seconds
    exited: Exited | None = None
    while True:
        left = None if deadline is None else max(0.0, deadline - time.monotonic())
        try:
            event = process.next_event(_SETTLE_S if exited is not None else left)
        except OutputGap as gap:
            kept.lost += gap.lost_bytes or 1
            continue
        except WaitTimeout:
            if exited is None:
                raise
            return exited.code
        match event:
            case Output():
                kept.add(event.data)
            case Exited():
                exited = event
            case Closed() | None:
                return None if exited is None else exited.code


def _is_path(path: str) -> bool:
    return posixpath.isabs(path) and "\0" not in path


def _reason(error: RequestFailed, path: str) -> str:
    """Return the framework's word for an error, or the server's text where it has none."""
    match as_os_error(error, path):
        case FileNotFoundError():
            return FILE_NOT_FOUND
        case PermissionError():
            return PERMISSION_DENIED
        case IsADirectoryError():
            return IS_DIRECTORY
        case NotADirectoryError():
            return INVALID_PATH
        case other:
            return str(other)

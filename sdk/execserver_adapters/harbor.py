"""Harbor: an environment whose trials run on a box.

    harbor run ... --environment-import-path execserver_adapters.harbor:ExecserverEnvironment --ek box=dev

Harbor builds no image here: the box is what the task's Dockerfile describes, a machine or container made for
it.  In the name of the box `{environment_name}` and `{session_id}` stand for the task and the trial, so that
each can have a box of its own.  Harbor empties `/logs` and `/tests` of an environment, so a box must be
named; a private server on this machine is never taken.
"""

from __future__ import annotations

import os
import posixpath
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from harbor.environments.base import BaseEnvironment, EnvironmentPath, ExecResult
from harbor.environments.capabilities import EnvironmentCapabilities, EnvironmentResourceCapabilities
from harbor.models.task.config import NetworkMode, NetworkPolicy

from execserver_adapters._accounts import Account, UserUnsupported, account_of, probe_argv
from execserver_adapters._commands import Command, Commands, OnOutput, TimedOut
from execserver_adapters._kept import Kept
from execserver_adapters._os_errors import as_os_error
from execserver_adapters._policies import checked, is_confined, sandbox_of
from execserver_client import Box, RequestFailed, connect

_KEPT_BYTES: Final = 32 * 1024 * 1024  # of the beginning and of the end of each stream
_SHORT_LIMIT_S: Final = 60.0
_NOT_STARTED: Final = "the environment is not started, or has been stopped"
_OF_HARBOR: Final = ("/logs", "/tests", "/solution")


class CommandTimedOut(RuntimeError, TimeoutError):
    """A command was ended at its time limit; Harbor's own environments raise RuntimeError for it."""


class ExecserverEnvironment(BaseEnvironment):
    """A connection to a box for one trial.

    Arguments beside Harbor's: `box`; `sandbox` (`full-access`, `workspace-write`, `read-only` or the
    contract's object); `writable` (more writable folders of `workspace-write`, beside the working folder and
    Harbor's own); `token_file`.  With a named sandbox, a policy without network is enforced, also one that
    changes during a trial.
    """

    def __init__(
        self,
        *args: Any,
        box: str | None = None,
        sandbox: str | Mapping[str, Any] = "full-access",
        writable: tuple[str, ...] | list[str] = (),
        token_file: str | None = None,
        **kwargs: Any,
    ) -> None:
        self._policy = checked(sandbox)
        self._writable = tuple(writable)
        self._address = box or os.environ.get("EXECSERVER_BOX")
        self._token_file = token_file
        self._box: Box | None = None
        self._commands: Commands | None = None
        self._workdir = ""
        self._accounts: dict[str, Account] = {}
        super().__init__(*args, **kwargs)

    @staticmethod
    def type() -> str:
        """Return Harbor's word for this kind of environment."""
        return "execserver"

    @property
    def capabilities(self) -> EnvironmentCapabilities:
        """What can be enforced: the network is shut by the sandbox of each command."""
        shuts = self._policy in ("workspace-write", "read-only")
        return EnvironmentCapabilities(disable_internet=shuts, dynamic_network_policy=shuts)

    @classmethod
    def resource_capabilities(cls) -> EnvironmentResourceCapabilities | None:
        """Return that a box has the processors and the memory it has."""
        return EnvironmentResourceCapabilities(fractional_cpus=True)

    def _validate_definition(self) -> None:
        if not self._address:
            raise ValueError(
                "name the box with --ek box=BOX or EXECSERVER_BOX: Harbor empties /logs and /tests on it"
            )
        if (self.environment_dir / "Dockerfile").exists() or self.task_env_config.docker_image:
            self.logger.info("no image is built: the box is taken as it is")

    async def start(self, force_build: bool) -> None:
        """Connect and make the folders of the trial.  Raises `ExecServerError`."""
        assert self._address is not None
        names = {"{environment_name}": self.environment_name, "{session_id}": self.session_id}
        address = self._address
        for name, value in names.items():
            address = address.replace(name, value)
        self._box = await connect(address, token_file=self._token_file)
        self._commands = Commands(self._box)
        try:
            self._workdir = await self._folder()
            await self.ensure_dirs(self._mount_targets(writable_only=True))
            await self._upload_environment_dir_after_start()
        except BaseException:
            await self.stop(delete=True)
            raise

    async def stop(self, delete: bool) -> None:
        """Disconnect; what still runs ends.  The files of the trial stay on the box, which is not ours."""
        box, self._box = self._box, None
        if self._commands is not None:
            await self._commands.aclose()
        if box is not None:
            await box.aclose()

    async def exec(
        self,
        command: str,
        cwd: str | None = None,
        env: dict[str, str] | None = None,
        timeout_sec: int | None = None,
        user: str | int | None = None,
    ) -> ExecResult:
        """Run a command in Bash.  Raises CommandTimedOut, and ValueError for a user the box cannot become.

        Of more than 64 MiB of a stream its beginning and its end are returned.
        """
        argv, variables = ["/bin/bash", "-c", command], self._merge_env(env) or {}
        wanted = self._resolve_user(user)
        if wanted is not None:
            account = await self._account(str(wanted))
            argv, variables = account.argv(argv), account.env(variables)
        folder = posixpath.join(self._workdir, cwd or "")
        request = Command(argv, folder, variables, None, self._sandbox(), timeout_sec or None)
        return await self._run(request, self._output_callback())

    async def reset_dirs(
        self,
        *,
        remove_dirs: Sequence[EnvironmentPath],
        create_dirs: Sequence[EnvironmentPath],
        chmod_dirs: Sequence[EnvironmentPath] | None = None,
    ) -> ExecResult:
        """Remove and make folders as Harbor asks; without the sandbox, which protects what they are in."""
        command = self._reset_dirs_command(
            remove_dirs=remove_dirs, create_dirs=create_dirs, chmod_dirs=chmod_dirs
        )
        return await self._unconfined(command)

    async def ensure_dirs(self, dirs: Sequence[EnvironmentPath], *, chmod: bool = True) -> ExecResult | None:
        """Make folders as Harbor asks, without the sandbox."""
        return await self._unconfined(self._ensure_dirs_command(dirs, chmod=chmod)) if dirs else None

    async def empty_dirs(self, dirs: Sequence[EnvironmentPath], *, chmod: bool = True) -> ExecResult | None:
        """Empty folders as Harbor asks, without the sandbox."""
        return await self._unconfined(self._empty_dirs_command(dirs, chmod=chmod)) if dirs else None

    async def upload_file(self, source_path: Path | str, target_path: str) -> None:
        """Copy one local file to the box; folders above it are made."""
        await self._copy_up(Path(source_path), target_path)

    async def upload_dir(self, source_dir: Path | str, target_dir: str) -> None:
        """Copy what is in a local folder into a folder of the box."""
        await self._copy_up(Path(source_dir), target_dir)

    async def download_file(self, source_path: str, target_path: Path | str) -> None:
        """Copy one file from the box."""
        await self._copy_down(source_path, Path(target_path))

    async def download_dir(self, source_dir: str, target_dir: Path | str) -> None:
        """Copy what is in a folder of the box into a local folder, never outside of it."""
        await self._copy_down(source_dir, Path(target_dir))

    async def _apply_network_policy(self, network_policy: NetworkPolicy) -> None:
        """Nothing is to be done now: each command's sandbox is made from the policy of its time."""

    async def _copy_up(self, local: Path, remote: str) -> None:
        there = posixpath.join(self._workdir, remote)
        try:
            files = self._connected().files
            await files.mkdir(posixpath.dirname(there) or "/")
            await files.upload(local, there)
        except RequestFailed as error:
            raise as_os_error(error, remote) from error

    async def _copy_down(self, remote: str, local: Path) -> None:
        local.parent.mkdir(parents=True, exist_ok=True)
        try:
            await self._connected().files.download(posixpath.join(self._workdir, remote), local)
        except RequestFailed as error:
            raise as_os_error(error, remote) from error

    def _connected(self) -> Box:
        if self._box is None:
            raise RuntimeError(_NOT_STARTED)
        return self._box

    def _sandbox(self) -> object:
        network = self._network_policy.network_mode == NetworkMode.PUBLIC
        roots = [self._workdir, *_OF_HARBOR, *self._writable]
        return sandbox_of(self._policy, roots, network=network)

    async def _run(self, command: Command, on_output: OnOutput | None = None) -> ExecResult:
        if self._commands is None or self._box is None:
            raise RuntimeError(_NOT_STARTED)
        try:
            ran = await self._commands.run(command, _kept, on_output)
        except TimedOut as error:
            raise CommandTimedOut(str(error)) from None
        return ExecResult(stdout=ran.stdout.text(), stderr=ran.stderr.text(), return_code=ran.exit_code)

    async def _unconfined(self, command: str) -> ExecResult:
        return await self._run(Command(["/bin/sh", "-c", command], "/", timeout=_SHORT_LIMIT_S))

    async def _folder(self) -> str:
        """Return the absolute working folder: the task's, else the one in which the box starts commands."""
        begun = await self._run(Command(["/bin/sh", "-c", "pwd"], None, timeout=_SHORT_LIMIT_S))
        folder = posixpath.join((begun.stdout or "/").removesuffix("\n"), self.task_env_config.workdir or "")
        await self._connected().files.mkdir(folder)
        return folder

    async def _account(self, user: str) -> Account:
        if user not in self._accounts:
            try:
                probe = await self._run(Command(probe_argv(user), "/", timeout=_SHORT_LIMIT_S))
                confined = is_confined(self._policy)
                self._accounts[user] = account_of(user, probe.stdout or "", confined=confined)
            except UserUnsupported as error:
                if user not in ("root", "0"):
                    raise ValueError(str(error)) from None
                # Harbor tidies up as root everywhere; a server without root does it with the rights it has.
                self._accounts[user] = Account(user, 0, 0, "/")
        return self._accounts[user]


def _kept() -> Kept:
    return Kept(_KEPT_BYTES, _KEPT_BYTES)

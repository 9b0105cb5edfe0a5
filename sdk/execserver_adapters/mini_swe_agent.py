"""mini-SWE-agent: an environment whose commands run on a box.

    environment:
      environment_class: execserver_adapters.mini_swe_agent.ExecserverEnvironment
      box: dev
      cwd: /home/me/project

Each command is a new process, as the framework has it: `cd` and variables do not last.  Output of both
streams comes in the order it was written, and of much output its beginning and its end.
"""

from __future__ import annotations

import os
import posixpath
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any, Final, Self

from minisweagent.exceptions import Submitted
from minisweagent.utils.serialize import recursive_merge
from pydantic import BaseModel, ConfigDict, Field, field_validator

from execserver_adapters._commands import Command, Commands
from execserver_adapters._kept import Kept
from execserver_adapters._policies import checked, sandbox_of
from execserver_client import Box, ExecServerError, connect
from execserver_client.sync._portal import Portal

_FINISHED: Final = "COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"
_BOTH_STREAMS: Final = ("/bin/sh", "-c", 'exec "$@" 2>&1', "sh")
_UNAME: Final = "PATH=/usr/bin:/bin; uname -s; uname -n; uname -r; uname -v; uname -m"
_UNAME_FIELDS: Final = ("system", "node", "release", "version", "machine")
_SHORT_LIMIT_S: Final = 30.0
_MOST_PRINTED: Final = 64 * 1024


class ExecserverEnvironmentConfig(BaseModel):
    """Where commands run and what they may do there.

    `box` is a box as in `execserver run`; None takes `EXECSERVER_BOX`, else a private server on this machine.
    `sandbox` is `workspace-write` (only `cwd` and the temporary folders are writable), `read-only`,
    `full-access` or the contract's object.  `timeout` is in seconds, `max_output_bytes` for one command.
    """

    model_config = ConfigDict(extra="forbid")

    box: str | None = None
    cwd: str = ""
    env: dict[str, str] = Field(default_factory=dict)
    forward_env: list[str] = Field(default_factory=list)
    timeout: int = 30
    interpreter: list[str] = Field(default_factory=lambda: ["bash", "--norc", "-c"])
    sandbox: str | dict[str, Any] = "workspace-write"
    network: bool = False
    max_output_bytes: int = Field(default=10 * 1024 * 1024, gt=0)
    token_file: str | None = None

    @field_validator("sandbox")
    @classmethod
    def _known(cls, value: str | dict[str, Any]) -> str | Mapping[str, Any]:
        return checked(value)


class ExecserverEnvironment:
    """A connection to a box; a context manager that ends it.  One thread at a time may use it."""

    def __init__(self, *, config_class: type = ExecserverEnvironmentConfig, **kwargs: Any) -> None:
        """Connect; the arguments are those of `ExecserverEnvironmentConfig`.  Raises `ExecServerError`."""
        self._portal: Portal | None = None
        self.config: ExecserverEnvironmentConfig = config_class(**kwargs)
        self._portal = Portal()  # the thread of all blocking clients; it ends with the last of them
        try:
            self._commands = self._portal.call(self._connect)
            begun = self._lines("pwd")[0]
            self._home = posixpath.join(begun, self.config.cwd)
            self._uname = dict(zip(_UNAME_FIELDS, self._lines(_UNAME), strict=False))
        except BaseException:
            self.cleanup()
            raise

    def execute(self, action: dict[str, Any], cwd: str = "", *, timeout: int | None = None) -> dict[str, Any]:
        """Run the action's `command` and return `output`, `returncode` and `exception_info`.

        What fails, also a time limit, is in the answer, with -1 as `returncode`.  Raises Submitted when the
        command's output says that the task is done.
        """
        kept = Kept(self.config.max_output_bytes // 2, self.config.max_output_bytes // 2)
        line = [*_BOTH_STREAMS, *self.config.interpreter, str(action.get("command", ""))]
        try:
            code = self._run(line, posixpath.join(self._home, cwd), timeout or self.config.timeout, kept)
        except (ExecServerError, OSError) as error:  # TimeoutError is one of these
            return {
                "output": kept.text(),
                "returncode": -1,
                "exception_info": f"An error occurred while executing the command: {error}",
                "extra": {"exception_type": type(error).__name__, "exception": str(error)},
            }
        output = {"output": kept.text(), "returncode": code, "exception_info": ""}
        _raise_if_submitted(output)
        return output

    def get_template_vars(self, **kwargs: Any) -> dict[str, Any]:
        """Return the values for prompts: the settings, and what `uname` says on the box."""
        variables: dict[str, Any] = recursive_merge(self.config.model_dump(), self._uname, kwargs)
        return variables

    def serialize(self) -> dict[str, Any]:
        """Return the settings for the trajectory file."""
        return {
            "info": {
                "config": {
                    "environment": self.config.model_dump(mode="json"),
                    "environment_type": f"{type(self).__module__}.{type(self).__name__}",
                }
            }
        }

    def cleanup(self) -> None:
        """Disconnect; may be called again.  Commands that still run end with it."""
        portal, self._portal = self._portal, None
        if portal is not None:
            portal.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.cleanup()

    async def _connect(self) -> Commands:
        box: Box = await connect(self.config.box, token_file=self.config.token_file)
        assert self._portal is not None
        self._portal.adopt(box.aclose)  # also when nobody has this environment any more
        return Commands(box)

    def _run(self, argv: Sequence[str], cwd: str | None, timeout: float, kept: Kept) -> int:
        if self._portal is None:
            raise OSError("the environment has been cleaned up")
        forwarded = {name: os.environ[name] for name in self.config.forward_env if name in os.environ}
        sandbox = None
        if cwd is not None:
            sandbox = sandbox_of(self.config.sandbox, [self._home], network=self.config.network)
        command = Command(argv, cwd, {**forwarded, **self.config.env}, None, sandbox, timeout)
        return self._portal.call(self._commands.run, command, lambda: kept).exit_code

    def _lines(self, script: str) -> list[str]:
        """Return what a script of ours prints, in the folder where the box starts commands."""
        kept = Kept(_MOST_PRINTED, 0)
        if self._run(["/bin/sh", "-c", script], None, _SHORT_LIMIT_S, kept):
            raise OSError(f"the box cannot run a shell: {kept.text()}")
        return kept.text().splitlines() or [""]


def _raise_if_submitted(output: dict[str, Any]) -> None:
    first, _, submission = str(output["output"]).lstrip().partition("\n")
    if output["returncode"] == 0 and first.strip() == _FINISHED:
        extra = {"exit_status": "Submitted", "submission": submission}
        raise Submitted({"role": "exit", "content": submission, "extra": extra})

"""Drives the real command line client, with a scripted model and a home folder of its own."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from typing import Any

from tests.reference.install import new_home, reference_binary
from tests.reference.model_server import ModelServer, Turn
from tests.support.server_process import interrupts_not_ignored

RUN_WAIT = 150.0
MODEL = "scripted"
CATALOG: dict[str, Any] = {
    "models": [
        {
            "slug": MODEL,
            "display_name": "Scripted",
            "base_instructions": "Do as the script says.",
            "supported_reasoning_levels": [],
            "shell_type": "unified_exec",
            "apply_patch_tool_type": "freeform",
            "visibility": "list",
            "supported_in_api": True,
            "priority": 0,
            "supports_reasoning_summaries": False,
            "support_verbosity": False,
            "supports_parallel_tool_calls": False,
            "truncation_policy": {"mode": "tokens", "limit": 10000},
            "context_window": 200000,
            "input_modalities": ["text", "image"],
            "experimental_supported_tools": [],
        }
    ]
}
"""One model that is offered every tool: what both clients require of a catalogue entry."""


class Client:
    """One client program, its home folder, its workspace and its model. `close` removes the folder."""

    def __init__(self, version: str, script: list[Turn]) -> None:
        """Set up a home folder for this version and a model that plays the script."""
        self.version = version
        self.binary = reference_binary(version)
        self.model = ModelServer(script)
        self.home = new_home()
        self.workspace = self.home / "ws"
        self.workspace.mkdir()
        self.codex_home = self.home / "codex"
        self.codex_home.mkdir()
        self.extra_config = ""
        self.extra_env: dict[str, str] = {}

    def write_config(self) -> None:
        """Write config.toml and the model catalogue."""
        catalog = self.codex_home / "catalog.json"
        catalog.write_text(json.dumps(CATALOG))
        (self.codex_home / "config.toml").write_text(
            f'model = "{MODEL}"\n'
            'model_provider = "fake"\n'
            f'model_catalog_json = "{catalog}"\n'
            "[model_providers.fake]\n"
            'name = "fake"\n'
            f'base_url = "{self.model.url}"\n'
            'wire_api = "responses"\n'
            'env_key = "FAKE_KEY"\n'
            "request_max_retries = 0\n"
            "stream_max_retries = 0\n"
            "supports_websockets = false\n" + self.extra_config
        )

    def environment(self, exec_server: str | None) -> dict[str, str]:
        """Return the client's environment variables."""
        env = {name: os.environ[name] for name in ("PATH", "LANG") if name in os.environ}
        env |= {"HOME": str(self.home), "CODEX_HOME": str(self.codex_home), "FAKE_KEY": "x", **self.extra_env}
        if exec_server is not None:
            env["CODEX_EXEC_SERVER_URL"] = exec_server
        return env

    def start(
        self, exec_server: str | None, *, sandbox: str = "danger-full-access"
    ) -> subprocess.Popen[bytes]:
        """Start `codex exec` with a prompt; the caller waits for it."""
        self.write_config()
        argv = [str(self.binary), "exec", "--json", "--skip-git-repo-check", "-s", sandbox]
        argv += ["-C", str(self.workspace), "do as the script says"]
        with interrupts_not_ignored():
            return subprocess.Popen(
                argv,
                env=self.environment(exec_server),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
            )

    def run(self, exec_server: str | None, *, sandbox: str = "danger-full-access") -> str:
        """Run one turn to its end; return what the client printed. Raises when it fails."""
        with self.start(exec_server, sandbox=sandbox) as child:
            try:
                out, err = child.communicate(timeout=RUN_WAIT)
            except BaseException:
                child.kill()
                raise
        assert child.returncode == 0, (child.returncode, out, err)
        return (out + err).decode(errors="replace")

    def close(self) -> None:
        """Stop the model and remove the home folder."""
        self.model.stop()
        shutil.rmtree(self.home, ignore_errors=True)

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

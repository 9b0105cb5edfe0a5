"""The real client 0.169.0 with its feature `network_proxy`, on our server and on its own."""

from __future__ import annotations

import http.server
import json
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.reference.app_server import AppServer
from tests.reference.codex_cli import Client
from tests.reference.install import ReferenceMissing
from tests.reference.model_server import Turn, say
from tests.reference.scenario import outputs, shell
from tests.support.newest import with_files_in_etc
from tests.support.server_process import OURS, Flavour, ServerProcess, base_environment

CONFIG = """[features.network_proxy]
enabled = true
[features.network_proxy.domains]
"127.0.0.1" = "allow"
"blocked.example" = "deny"
[sandbox_workspace_write]
network_access = true
"""
GET = """import sys, urllib.request, urllib.error
for url in sys.argv[1:]:
    try: print(urllib.request.urlopen(url, timeout=20).read().decode())
    except urllib.error.HTTPError as error: print(error.code, error.headers["x-proxy-error"])
"""

# What an administrator requires; only then is the reviewer asked about hosts.
REQUIREMENTS = """[experimental_network]
enabled = true
[experimental_network.domains]
"allowed.example" = "allow"
"""
REVIEWED = """[features.network_proxy]
enabled = true
[sandbox_workspace_write]
network_access = true
"""

REASON = """import json, sys, urllib.request, urllib.error
try: urllib.request.urlopen(sys.argv[1], timeout=20)
except urllib.error.HTTPError as error: print(error.code, json.load(error)["reason"])
"""
NAMES = "127.0.0.1 localhost\n"
SILENT = "nameserver 127.0.0.1\noptions timeout:1 attempts:1\n"

pytestmark = pytest.mark.timeout(300)


@pytest.fixture(params=["ours", "0.169.0"])
def flavour(request: pytest.FixtureRequest) -> Flavour:
    """The server under test."""
    return OURS if request.param == "ours" else request.getfixturevalue("newest_reference")


@pytest.fixture
def server(flavour: Flavour) -> Iterator[ServerProcess]:
    """A server."""
    with ServerProcess(flavour, env=base_environment()) as running:
        yield running


class Hello(http.server.BaseHTTPRequestHandler):
    """Greets whoever asks."""

    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"hello")

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""


@pytest.fixture
def web() -> Iterator[str]:
    """The URL of an HTTP server on loopback."""
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Hello) as made:
        thread = threading.Thread(target=made.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{made.server_port}/"
        made.shutdown()
        thread.join()


def test_a_command_reaches_what_the_client_s_rules_allow_and_nothing_else(
    server: ServerProcess, web: str
) -> None:
    command = f"{sys.executable} get.py {web} http://blocked.example/"
    try:
        client = Client("0.169.0", [[shell(command)], [say("done")]])
    except ReferenceMissing as missing:
        pytest.skip(str(missing))
    with client:
        (client.workspace / "get.py").write_text(GET)
        client.extra_config = CONFIG
        client.run(server.url, sandbox="workspace-write")
        assert outputs(client)["call-1"].text == "hello\n403 blocked-by-denylist\n"


@pytest.mark.parametrize(
    ("outcome", "told"), [("allow", "403 not_allowed_local"), ("deny", "Reason: so be it")]
)
def test_the_client_s_reviewer_decides_about_a_host_that_no_rule_allows(
    flavour: Flavour, outcome: str, told: str, tmp_path: Path
) -> None:
    """After its yes the server judges again: here, where no name is known, the host has no public address."""
    review = {"risk_level": "low", "user_authorization": "high", "outcome": outcome, "rationale": "so be it"}
    asking = f"{sys.executable} reason.py http://ask.example/"
    script: list[Turn] = [[shell(asking)], [say(json.dumps(review))], [say("done")]]
    try:
        client = Client("0.169.0", script)
    except ReferenceMissing as missing:
        pytest.skip(str(missing))
    theirs, ours = tmp_path / "client", tmp_path / "server"
    known = {"codex/requirements.toml": REQUIREMENTS, "hosts": f"{NAMES}93.184.216.34 ask.example\n"}
    there = with_files_in_etc(ours, {"hosts": NAMES, "resolv.conf": SILENT})
    started = replace(flavour, argv=(*there, *flavour.argv))
    with client, ServerProcess(started, env=base_environment()) as server:
        (client.workspace / "reason.py").write_text(REASON)
        client.extra_config = REVIEWED
        app = AppServer(client, with_files_in_etc(theirs, known))
        try:
            app.call("environment/add", {"environmentId": "box", "execServerUrl": server.url})
            environment = {"environmentId": "box", "cwd": str(client.workspace)}
            asked = {"environments": [environment], "sandbox": "workspace-write"}
            reviewed = {"approvalPolicy": "on-request", "approvalsReviewer": "auto_review"}
            thread = app.call("thread/start", asked | reviewed)
            text = [{"type": "text", "text": "go"}]
            app.call("turn/start", {"threadId": thread["thread"]["id"], "input": text})
            app.wait_for("turn/completed")
        finally:
            app.close()
        assert client.model.requests[1]["client_metadata"]["x-openai-subagent"] == "guardian"
        assert told in str(client.model.outputs()["call-1"])

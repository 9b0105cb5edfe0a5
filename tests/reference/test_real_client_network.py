"""The real client 0.169.0 with its feature `network_proxy`, on our server and on its own."""

from __future__ import annotations

import http.server
import sys
import threading
from collections.abc import Iterator

import pytest

from tests.reference.codex_cli import Client
from tests.reference.install import ReferenceMissing
from tests.reference.model_server import say
from tests.reference.scenario import outputs, shell
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

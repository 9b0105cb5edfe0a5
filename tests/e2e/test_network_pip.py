"""What docs/network.md begins with: the rules that let `pip install` work, and nothing else."""

from __future__ import annotations

import http.server
import sys
import threading
import zipfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from tests.support.peer import Peer
from tests.support.running import Outcome, run
from tests.support.server_process import ServerProcess

pytestmark = pytest.mark.ours_only("--network-rules is ours")

FILES = {
    "tiny.py": "WORD = 'here'\n",
    "tiny-1.0.dist-info/METADATA": "Metadata-Version: 2.1\nName: tiny\nVersion: 1.0\n",
    "tiny-1.0.dist-info/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    "tiny-1.0.dist-info/RECORD": "",
}
WHEEL = "tiny-1.0-py3-none-any.whl"


class _Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def index(tmp_path: Path) -> Iterator[str]:
    """A package index on loopback with one package."""
    place = tmp_path / "index" / "simple" / "tiny"
    place.mkdir(parents=True)
    with zipfile.ZipFile(place / WHEEL, "w") as wheel:
        for name, text in FILES.items():
            wheel.writestr(name, text)
    (place / "index.html").write_text(f'<a href="{WHEEL}">{WHEEL}</a>')
    handler = partial(_Quiet, directory=str(tmp_path / "index"))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as served:
        thread = threading.Thread(target=served.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{served.server_port}"
        served.shutdown()
        thread.join()


def pip(peer: Peer, process_id: str, index: str, target: Path) -> Outcome:
    words = ["-m", "pip", "install", "--isolated", "--no-cache-dir", "--disable-pip-version-check"]
    words += ["--retries", "1", "--index-url", f"{index}/simple", "--target", str(target), "tiny"]
    return run(peer, process_id, [sys.executable, "-I", *words], env={"HOME": str(target.parent)})


def test_with_a_rule_for_its_index_pip_works_and_reaches_no_other(index: str, tmp_path: Path) -> None:
    rules = tmp_path / "rules.toml"
    rules.write_text(f'allow = ["{index}"]\n')
    with ServerProcess(options=("--network-rules", str(rules))) as server, server.connect() as peer:
        peer.open_session()
        installed = pip(peer, "p", index, tmp_path / "there")
        refused = pip(peer, "q", "https://index.example.org", tmp_path / "not")
    assert installed.exit_code == 0, installed
    assert (tmp_path / "there" / "tiny.py").read_text() == FILES["tiny.py"]
    assert refused.exit_code == 1
    assert b'to let it through: allow = ["https://index.example.org"]' in refused.stderr
    assert not (tmp_path / "not").exists()

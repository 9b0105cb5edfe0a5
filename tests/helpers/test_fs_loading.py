"""`capabilities/loadDiscoveries` of the file helper: its process, and what of the tree that needs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from execserver.files.capability_loading import METADATA_LOST
from tests.files.test_capability_loading import INSTALLED, MANIFEST, load, put, skill
from tests.helpers.test_fs_discovery import uri_of
from tests.support.source import ROOT
from tools.freeze.contents import is_for_helpers, replaced_modules

OPERATION = "capabilities/loadDiscoveries"
# With `site`: in a checkout PyYAML does not lie beside the package.
COMMAND = [sys.executable, "-I", str(ROOT / "execserver" / "__main__.py"), "--codex-run-as-fs-helper"]


def request_for(*places: object, warnings: tuple[str, ...] = ()) -> str:
    return json.dumps({"operation": OPERATION, "params": {"locations": places, "warnings": warnings}})


def ask(text: str, command: list[str] = COMMAND) -> Any:
    """Return the response of a helper."""
    done = subprocess.run(command, input=text.encode(), capture_output=True, timeout=30, check=False)
    assert (done.returncode, done.stderr) == (0, b""), done.stderr
    payload = json.loads(done.stdout)["payload"]
    assert payload["operation"] == OPERATION
    return payload["response"]


@pytest.fixture
def plugin(tmp_path: Path) -> Path:
    """A plugin with two skills, one of which is broken."""
    put(tmp_path / MANIFEST, '{"name":"n"}')
    skill(tmp_path / "q")
    put(tmp_path / "q" / "agents" / "openai.yaml", "policy:\n  products: [codex]\n")
    skill(tmp_path / "bad", "name: [")
    return tmp_path


def test_a_process_answers_about_places_in_their_order(plugin: Path) -> None:
    identity, version, remote_id = INSTALLED
    installed = {"id": identity, "version": version, "remote_plugin_id": remote_id}
    places = [
        {"root": uri_of(plugin), "standalone_root_id": "s"},
        {"root": "file://host/x"},
        {"root": uri_of(plugin), "plugin": installed},
        [uri_of(plugin / "q"), None, None],
    ]
    answer = ask(request_for(*places, warnings=("w",)))
    assert answer["warnings"] == ["w", *[METADATA_LOST] * 3]
    del answer["warnings"]
    expected = load((plugin, "s", None), (plugin, None, INSTALLED), (plugin / "q", None, None))
    assert answer == {name: expected[name] for name in ("plugins", "skills")}
    assert [each["name"] for each in answer["skills"]] == ["n:q", "n:q"]
    assert answer["plugins"][0]["skills"][0]["policy"]["products"] == ["codex"]


def test_its_part_of_the_tree_has_all_that_it_loads(plugin: Path) -> None:
    # As in the one file, the package is empty.
    code = (
        "import sys, types; yaml = sys.modules['yaml'] = types.ModuleType('yaml')\n"
        f"yaml.__path__ = [{os.path.dirname(yaml.__file__)!r}]\n"
        f"sys.path.insert(0, {str(ROOT)!r}); sys.argv = ['codex-fs']; early = set(sys.modules)\n"
        "import execserver.dispatch\n"
        "from execserver._helpers.codex_fs import main\n"  # the dispatch would end this process at once
        "status = main()\n"
        "files = {name for name, each in sys.modules.items() if getattr(each, '__file__', None)}\n"
        "print(*files - early, file=sys.stderr); sys.exit(status)"
    )
    done = subprocess.run(
        [sys.executable, "-I", "-c", code],
        input=request_for([uri_of(plugin), None, None]),
        capture_output=True,
        text=True,
        timeout=30,
        check=True,
    )
    loaded = done.stderr.split()
    assert "yaml.composer" in loaded
    assert '"n:q"' in done.stdout
    assert [name for name in loaded if not is_for_helpers(name)] == []
    assert replaced_modules(ROOT)["yaml"] == ""

"""Which command lines serve with `--ws-auth oidc`, and what the others are told before anything starts."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from execserver.access.entry import EntryError, make_entry
from execserver.access.oidc.options import MODE
from tests.support.oidc import ed_key, key_set
from tests.support.source import ROOT

URL = "https://login.example/"
PLAIN = {"--ws-auth": MODE, "--oidc-issuer": URL, "--oidc-audience": "box"}


def refusal(options: dict[str, str]) -> str:
    with pytest.raises(EntryError) as refused:
        make_entry(options)
    return str(refused.value)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"--ws-auth": MODE}, "are required when `--ws-auth oidc` is set"),
        (PLAIN | {"--oidc-audience": ""}, "are required when"),
        (PLAIN | {"--oidc-issuer": ""}, "are required when"),
        ({"--oidc-issuer": URL}, "require `--ws-auth oidc`"),
        ({"--ws-auth": "execserver-token", "--oidc-jwks": "x"}, "require `--ws-auth oidc`"),
        (PLAIN | {"--oidc-issuer": "http://login.example"}, "not https, and not on the loopback"),
        (PLAIN | {"--oidc-jwks": "/nowhere"}, "cannot read /nowhere"),
        (PLAIN | {"--ws-max-clock-skew-seconds": "301"}, "is 300 at most"),
        (PLAIN | {"--ws-issuer": URL}, "takes `--ws-max-clock-skew-seconds` only"),
        (PLAIN | {"--ws-token-file": "x"}, "takes `--ws-max-clock-skew-seconds` only"),
    ],
)
def test_options_that_contradict_are_told(options: dict[str, str], text: str) -> None:
    assert text in refusal(options)


def test_a_provider_is_asked_once_the_server_listens_and_a_file_is_read_at_once(tmp_path: Path) -> None:
    (tmp_path / "keys.json").write_bytes(key_set(ed_key()))
    entry = make_entry(PLAIN | {"--ws-max-clock-skew-seconds": "300"})
    assert entry.asks
    assert entry.begin is not None
    # With a file the issuer is only compared: a cluster's name, for example, need not be reachable.
    entry = make_entry(
        PLAIN | {"--oidc-issuer": "kubernetes/serviceaccount", "--oidc-jwks": f"{tmp_path}/keys.json"}
    )
    assert entry.asks
    assert entry.begin is None


@pytest.mark.parametrize("mode", ["oidc", None])
def test_neither_gevent_nor_cryptography_is_loaded_before_the_url_is_out(mode: str | None) -> None:
    options = PLAIN if mode else {}
    code = (
        f"import sys; from execserver.access.command_line import listen_and_entry as made\n"
        f"made('ws://127.0.0.1:0', {options!r}, remote=False)\n"
        "print(sorted({'gevent', 'cryptography', 'h11', 'msgspec'} & set(sys.modules)))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=30, check=True
    )
    assert done.stdout == "[]\n"

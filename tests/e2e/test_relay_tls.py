"""A whole turn through a relay with TLS: both ends trust what `SSL_CERT_FILE` holds, and nothing else."""

from __future__ import annotations

import ssl
from pathlib import Path

import gevent
import pytest

from execserver.client import ConnectFailed, ExecServerClient, RemoteExecServerConnectArgs
from tests.support.certificates import make_authority
from tests.support.greenlets import the_hub_settles
from tests.support.relay_process import ENVIRONMENT, RelayProcess
from tests.support.remote_process import RemoteProcess
from tests.support.upgrades import upgraded

__all__ = ["the_hub_settles"]


def test_a_turn_over_tls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    authority = make_authority()
    server, trusted = tmp_path / "server.pem", tmp_path / "authority.pem"
    server.write_bytes(authority.issue("127.0.0.1"))
    trusted.write_bytes(authority.pem)
    words = ("--tls-cert", str(server), "--tls-key", str(server))
    with RelayProcess(*words, listen="https://127.0.0.1:0") as relay:
        relay.tls = ssl.create_default_context(cadata=authority.pem.decode())
        token = relay.token()
        args = RemoteExecServerConnectArgs(url=relay.url, environment_id=ENVIRONMENT, token=token)
        env = {"CODEX_API_KEY": token, "SSL_CERT_FILE": str(trusted)}
        with RemoteProcess(relay.url, ("--environment-id", ENVIRONMENT), env=env) as executor:
            executor.says("waiting for a harness")
            monkeypatch.delenv("SSL_CERT_FILE", raising=False)
            with pytest.raises(ConnectFailed, match="environment registry request failed"):
                ExecServerClient.connect_remote(args)
            monkeypatch.setenv("SSL_CERT_FILE", str(trusted))
            with ExecServerClient.connect_remote(args) as client:
                done = client.start(["sh", "-c", "echo out; head -c 1000000 /dev/zero"]).communicate()
                assert done.stdout == b"out\n" + bytes(1_000_000)
                # The executor becomes another program, which makes a TLS connection of its own.
                cat = client.start(["cat"], pipe_stdin=True)
                gevent.get_hub().threadpool.apply(upgraded, (executor,))
                assert cat.communicate(b"behind it\n").stdout == b"behind it\n"
                assert executor.errors().count("registered as environment") == 1

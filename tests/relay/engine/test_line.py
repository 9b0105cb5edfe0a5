"""Ways to the engine: TLS, and sentinels that know where it is."""

from __future__ import annotations

import subprocess
from pathlib import Path

import gevent
import pytest

from execserver.http_client.trust import NoTrust
from execserver.relay.engine.address import Credentials, EngineAddress, address_of
from execserver.relay.engine.client import Engine
from execserver.relay.engine.line import Dialer
from execserver.relay.errors import EngineSilent
from tests.support.certificates import make_authority
from tests.support.engine_process import EngineProcess, engine_program, free_port
from tests.support.waiting import wait_until


def test_tls_checks_the_engine(tmp_path: Path) -> None:
    engine_program()
    authority = make_authority()
    (tmp_path / "ca.pem").write_bytes(authority.pem)
    (tmp_path / "cert.pem").write_bytes(authority.issue("127.0.0.1"))
    port = free_port()
    words = ("--tls-port", str(port), "--tls-auth-clients", "no")
    files = ("--tls-cert-file", "cert.pem", "--tls-key-file", "cert.pem", "--tls-ca-cert-file", "ca.pem")
    paths = [str(tmp_path / word) if word.endswith(".pem") else word for word in files]
    address = address_of(f"rediss://127.0.0.1:{port}")
    with EngineProcess(*words, *paths):
        known = {"SSL_CERT_FILE": str(tmp_path / "ca.pem"), "SSL_CERT_DIR": str(tmp_path / "none")}
        line = Dialer(address, Credentials(), known).dial()
        assert line.ask(("PING",)) == [b"PONG"]
        line.close()
        with pytest.raises(EngineSilent, match="certificate"):
            Dialer(address, Credentials(), {}).dial()
        gevent.sleep(0.01)


def test_tls_without_any_authority_is_refused(tmp_path: Path) -> None:
    empty = tmp_path / "empty.pem"
    empty.write_text("")
    with pytest.raises(NoTrust):
        Dialer(address_of("rediss://127.0.0.1:1"), Credentials(), {"SSL_CERT_FILE": str(empty)})


class Sentinel:
    """A sentinel of the test's own, which knows one primary."""

    def __init__(self, folder: Path, primary: EngineProcess) -> None:
        self.port = free_port()
        config = folder / f"sentinel-{self.port}.conf"
        config.write_text(
            f"port {self.port}\nbind 127.0.0.1\ndir {folder}\n"
            f"sentinel monitor main 127.0.0.1 {primary.port} 1\n"
            "sentinel down-after-milliseconds main 500\nsentinel failover-timeout main 2000\n"
        )
        self.process = subprocess.Popen(
            [engine_program(), str(config), "--sentinel"],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            stdin=subprocess.DEVNULL,
        )

    def stop(self) -> None:
        """Kill it."""
        self.process.kill()
        self.process.wait(20)


def test_sentinels_lead_to_the_primary_also_after_it_died(tmp_path: Path) -> None:
    engine_program()
    with EngineProcess() as first, EngineProcess("--replicaof", f"127.0.0.1 {first.port}") as second:
        first.wait_for_replica()
        sentinel = Sentinel(tmp_path, first)
        unreachable = free_port()
        hosts = (("127.0.0.1", unreachable), ("127.0.0.1", sentinel.port))
        dialer = Dialer(EngineAddress(False, hosts, "main"), Credentials(), {})
        engine = Engine(dialer, (), lambda result: None)
        try:
            wait_until(lambda: _starts(engine))
            assert engine.call(("SET", "before", "1"), ("WAIT", 1, 5000)) == [b"OK", 1]
            first.kill()
            wait_until(lambda: _takes(engine), 40.0)
            assert second.ask("GET", "after") == b"$1\r\n2\r\n"
            assert engine.call(("GET", "before")) == [b"1"]
        finally:
            engine.close()
            sentinel.stop()


def test_a_sentinel_that_knows_no_such_primary_is_told() -> None:
    engine_program()
    with EngineProcess() as no_sentinel:
        dialer = Dialer(EngineAddress(False, (("127.0.0.1", no_sentinel.port),), "main"), Credentials(), {})
        with pytest.raises(EngineSilent, match="knows its primary"):
            dialer.dial()
        gevent.sleep(0.01)


def _starts(engine: Engine) -> bool:
    try:
        engine.start()
    except EngineSilent:
        gevent.sleep(0.05)
        return False
    return True


def _takes(engine: Engine) -> bool:
    gevent.sleep(0.05)
    try:
        return engine.call(("SET", "after", "2")) == [b"OK"]
    except EngineSilent:
        return False

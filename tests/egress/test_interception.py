"""Real programs, a real proxy and a real TLS server: who gets the real credential."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from execserver.egress.providers import Auth
from tests.support.egress_scene import get, socks_name
from tests.support.masking_scene import HOST, VENDOR, answer_of, masking_scene

CURL = ("curl", "-sS", "--max-time", "30")
PYTHON = """
import os, urllib.request
request = urllib.request.Request(os.environ["URL"], headers={"Authorization": "Bearer " + os.environ["KEY"]})
print(urllib.request.urlopen(request, timeout=30).read().decode(), end="")
"""


def test_curl_reaches_the_provider_with_the_real_value(tmp_path: Path) -> None:
    with masking_scene(tmp_path) as here:
        bearer = f"Authorization: Bearer {here.stand_in.decode()}"
        done = here.run(*CURL, "-H", bearer, f"{here.url}/v1/x?y=z")
        assert (done.returncode, done.stdout) == (0, b"hi"), done.stderr
        assert here.heard.startswith(b"GET /v1/x?y=z HTTP/1.1\r\n")
        assert b"Authorization: Bearer " + VENDOR + b"\r\n" in here.heard
        assert here.stand_in not in here.heard


def test_curl_does_with_socks_and_basic_authorization_and_a_body(tmp_path: Path) -> None:
    with masking_scene(tmp_path) as here:
        proxy = here.environment["ALL_PROXY"]
        user = f"x-access-token:{here.stand_in.decode()}"
        url = f"{here.url}/v1/x"
        done = here.run(*CURL, "-x", proxy, "-u", user, "-d", "body", url)
        assert (done.returncode, done.stdout) == (0, b"hi"), done.stderr
        assert b"Authorization: Basic eC1hY2Nlc3MtdG9rZW46dmVuZG9yX2FiY2RlZmdoaWo=\r\n" in here.heard
        assert here.heard.endswith(b"\r\n\r\nbody")


def test_python_does_with_the_variables_alone(tmp_path: Path) -> None:
    with masking_scene(tmp_path) as here:
        done = here.run(sys.executable, "-c", PYTHON, URL=f"{here.url}/v1/x")
        assert (done.returncode, done.stdout) == (0, b"hi"), done.stderr
        assert b"Authorization: Bearer " + VENDOR + b"\r\n" in here.heard


def test_a_header_of_the_providers_own_is_masked_too(tmp_path: Path) -> None:
    with masking_scene(tmp_path, auths=(Auth.HEADER,), header="x-key") as here:
        done = here.run(*CURL, "-H", f"X-Key: {here.stand_in.decode()}", f"{here.url}/v1/x")
        assert (done.returncode, done.stdout) == (0, b"hi"), done.stderr
        assert b"X-Key: " + VENDOR + b"\r\n" in here.heard


def test_requests_of_one_connection_are_looked_at_one_by_one(tmp_path: Path) -> None:
    with masking_scene(tmp_path) as here, here.tls() as tls:
        for path, got in (("/v1/a", VENDOR), ("/v2/b", here.stand_in), ("/v1/../v2", here.stand_in)):
            tls.sendall(here.request(path=path))
            assert answer_of(tls).endswith(b"\r\n\r\nhi")
            assert b"Bearer " + got + b"\r\n" in here.heard, path
        tls.sendall(here.request("Transfer-Encoding: chunked", method="POST") + b"3\r\nabc\r\n0\r\n\r\n")
        assert answer_of(tls).endswith(b"\r\n\r\nhi")
        assert here.heard.endswith(b"3\r\nabc\r\n0\r\n\r\n")


def test_an_address_is_a_destination_as_well(tmp_path: Path) -> None:
    with masking_scene(tmp_path) as here:
        place = f"127.0.0.1:{here.server.port}"
        assert b"200 OK" in here.ask(here.request(host=place), here.tls(name="127.0.0.1", place=place))
        assert VENDOR in here.heard


def test_the_answer_comes_back_as_it_is(tmp_path: Path) -> None:
    answer = b"HTTP/1.1 302 Found\r\nLocation: https://elsewhere.example/v1\r\nX-Echo: %b\r\n\r\n%b"
    answer = answer.replace(b"%b", VENDOR).replace(b"\r\nX-Echo", b"\r\ncontent-length: 17\r\nX-Echo")
    with masking_scene(tmp_path, answer=answer) as here:
        assert here.ask(here.request()) == answer


def test_no_other_host_gets_the_value_and_its_tls_is_not_opened(tmp_path: Path) -> None:
    with masking_scene(tmp_path) as here:
        trusted = here.folder / "trusted.pem"
        bearer = f"Authorization: Bearer {here.stand_in.decode()}"
        url = f"https://elsewhere.example:{here.server.port}/v1/x"
        done = here.run(*CURL, "--cacert", str(trusted), "-H", bearer, url)
        assert (done.returncode, done.stdout) == (0, b"hi"), done.stderr
        assert bearer.encode() in here.heard


def test_a_redirect_away_takes_no_value_along(tmp_path: Path) -> None:
    answer = (
        b"HTTP/1.1 302 Found\r\nLocation: https://elsewhere.example:%d/v1/y\r\ncontent-length: 2\r\n\r\nhi"
    )
    with masking_scene(tmp_path) as here:
        here.server._answer = answer % here.server.port
        trusted = here.folder / "both.pem"
        trusted.write_bytes((here.folder / "trusted.pem").read_bytes() + here.masked.authority.pem)
        bearer = f"Authorization: Bearer {here.stand_in.decode()}"
        follow = ("--location-trusted", "--max-redirs", "1", "--cacert", str(trusted))
        here.run(*CURL, *follow, "-H", bearer, f"{here.url}/v1/x")
        first, second = here.server.received
        assert b"Bearer " + VENDOR in first
        assert b"Bearer " + here.stand_in in second
        assert VENDOR not in second


def test_plain_http_carries_no_value(tmp_path: Path) -> None:
    with masking_scene(tmp_path) as here:
        place = f"{HOST}:{here.server.port}"
        bearer = f"Authorization: Bearer {here.stand_in.decode()}"
        answer = here.here.say(get(place, bearer, path="/v1/x"))
        assert answer.startswith(b"HTTP/1.1 502")  # the server speaks TLS only
        assert b"".join(here.server.received) == b""


def test_socks_to_the_provider_is_opened_as_well(tmp_path: Path) -> None:
    with masking_scene(tmp_path) as here:
        tls = here.tls(socks=socks_name(HOST.encode(), here.server.port))
        assert b"200 OK" in here.ask(here.request(), tls)
        assert VENDOR in here.heard


def test_a_server_that_is_not_the_provider_gets_nothing(tmp_path: Path) -> None:
    with masking_scene(tmp_path, trusts=False) as here:
        assert here.ask(here.request()).startswith(b"HTTP/1.1 502 Bad Gateway")
        assert b"".join(here.server.received) == b""
    with masking_scene(tmp_path, names=("elsewhere.example",)) as here:
        assert here.ask(here.request()).startswith(b"HTTP/1.1 502 Bad Gateway")
        assert b"".join(here.server.received) == b""


@pytest.mark.parametrize(
    "request_text",
    [
        "GET /v1/x HTTP/1.1\r\nHost: elsewhere.example\r\n{bearer}\r\n\r\n",
        "GET /v1/x HTTP/1.1\r\n{bearer}\r\n\r\n",
        "GET /v1/x HTTP/1.1\r\nHost: {place}\r\nHost: {place}\r\n{bearer}\r\n\r\n",
        "GET https://{place}/v1/x HTTP/1.1\r\nHost: {place}\r\n{bearer}\r\n\r\n",
        "CONNECT {place} HTTP/1.1\r\nHost: {place}\r\n{bearer}\r\n\r\n",
        "GET /v1/x HTTP/1.1\nHost: {place}\n{bearer}\n\n" + " " * 70000,
        "GET /v1/x HTTP/1.1\r\nHost: {place}\r\n{bearer}\r\n folded\r\n\r\n",
        "POST /v1/x HTTP/1.1\r\nHost: {place}\r\n{bearer}\r\nContent-Length: 3\r\n"
        "Content-Length: 4\r\n\r\nabc",
        "POST /v1/x HTTP/1.1\r\nHost: {place}\r\n{bearer}\r\nContent-Length: 3\r\n"
        "Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        "POST /v1/x HTTP/1.1\r\nHost: {place}\r\n{bearer}\r\nTransfer-Encoding: xchunked\r\n\r\n0\r\n\r\n",
    ],
)
def test_a_request_that_two_servers_read_in_two_ways_goes_nowhere(request_text: str, tmp_path: Path) -> None:
    with masking_scene(tmp_path) as here:
        place = f"{HOST}:{here.server.port}"
        bearer = f"Authorization: Bearer {here.stand_in.decode()}"
        text = request_text.format(place=place, bearer=bearer).encode()
        assert here.ask(text).startswith(b"HTTP/1.1 400 Bad Request")
        assert b"".join(here.server.received) == b""


def test_a_second_request_in_a_body_stays_a_body(tmp_path: Path) -> None:
    with masking_scene(tmp_path) as here:
        inner = here.request(path="/v1/inner")
        outer = here.request(f"Content-Length: {len(inner)}", path="/v2/outer", method="POST") + inner
        assert b"200 OK" in here.ask(outer)
        assert len(here.server.received) == 1
        assert VENDOR not in here.heard


def test_the_key_and_the_value_are_in_no_file_and_the_certificates_are_gone_at_the_end(
    tmp_path: Path,
) -> None:
    with masking_scene(tmp_path) as here:
        assert b"200 OK" in here.ask(here.request())
        (bundle,) = (tmp_path / "proxy").iterdir()
        assert here.environment["SSL_CERT_FILE"] == here.environment["npm_config_cafile"] == str(bundle)
        assert bundle.stat().st_mode & 0o777 == 0o644
        for path in tmp_path.rglob("*.pem"):
            assert VENDOR not in path.read_bytes()
        assert b"PRIVATE KEY" not in bundle.read_bytes()
        open_files = [
            os.readlink(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd") if _is_open(fd)
        ]
        assert not any("execserver-certificate" in name for name in open_files)
    assert list((tmp_path / "proxy").iterdir()) == []


def _is_open(fd: str) -> bool:
    return os.path.lexists(f"/proc/self/fd/{fd}")


def test_no_log_has_the_value_or_the_stand_in(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("DEBUG")
    with masking_scene(tmp_path, trusts=False) as here:
        here.ask(here.request())
        here.run(*CURL, "-k", "--cacert", "/dev/null", f"{here.url}/v1/x")
        told = caplog.text + repr([vars_of(record) for record in here.here.records])
        assert "api.vendor.example" in told
        assert VENDOR.decode() not in told
        assert here.stand_in.decode() not in told


def vars_of(record: object) -> list[object]:
    return [getattr(record, name) for name in ("method", "client")]

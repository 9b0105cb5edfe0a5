"""The command line against the wire contract, section 1: texts, exit codes, the one line on stdout.

Mistakes are checked in this process; what a caller sees of a whole run is checked on a process of its own.
"""

from __future__ import annotations

import os
import pty
import re
import shlex
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import execserver
from execserver import announcing, cli, cli_help
from execserver.arguments import NEEDS, read_table
from execserver.cli import Options, parse
from execserver.config_override import ConfigOverrideError, check_overrides
from execserver.leaving import Leave
from execserver.listen_url import ExecServerListenUrlParseError
from tests.support.sockets import need_ipv6
from tests.support.waiting import wait_until

SCRIPT = Path(execserver.__file__).with_name("__main__.py")
NOT_HERE = "Error: Address not available (os error 99)\n"
HINT = "\nFor more information, try '--help'.\n"
USAGE = "\nUsage: execserver [OPTIONS]\n"
URL_LINE = re.compile(rb"ws://127\.0\.0\.1:[1-9]\d*\n")


def usage(options: str) -> str:
    return f"\nUsage: execserver {options}\n"


def run(*argv: str, env: dict[str, str] | None = None, stdin: str = "") -> subprocess.CompletedProcess[str]:
    """Run the server until it ends by itself."""
    variables = {"PATH": os.environ["PATH"], **(env or {})}
    return subprocess.run(
        [sys.executable, "-I", SCRIPT, *argv],
        env=variables,
        input=stdin,
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )


@contextmanager
def started(*argv: str, env: dict[str, str] | None = None) -> Iterator[subprocess.Popen[bytes]]:
    """Start a server that goes on; end it with SIGTERM."""
    variables = {"PATH": os.environ["PATH"], **(env or {})}
    with subprocess.Popen(
        [sys.executable, "-I", SCRIPT, *argv],
        env=variables,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        bufsize=0,
    ) as process:
        try:
            yield process
        finally:
            process.terminate()
            process.wait(20)


def stdout_line(process: subprocess.Popen[bytes]) -> bytes:
    assert process.stdout is not None
    return process.stdout.readline()


@pytest.mark.parametrize(
    ("argv", "changed"),
    [
        ([], {}),
        (["--"], {}),
        (["--listen", "stdio"], {"listen": "stdio"}),
        (["--listen=ws://[::1]:0"], {"listen": "ws://[::1]:0"}),
        (["--listen", "-"], {"listen": "-"}),
        (["--listen="], {"listen": ""}),
        (["--listen", "a=b=c d"], {"listen": "a=b=c d"}),
        (["--environment-id", "e", "--name", "n"], {"environment_id": "e", "name": "n"}),
        (
            ["--remote", "http://x", "--environment-id", "e", "--use-agent-identity-auth"],
            {"remote": "http://x", "environment_id": "e", "use_agent_identity_auth": True},
        ),
        (["--executor-id", "x", "--remote=http://x"], {"remote": "http://x", "executor_id": "x"}),
        (["-cnokey", "-c=b=1", "-c", "c=2"], {"config": ["nokey", "b=1", "c=2"]}),
        (["--config=a=1", "--enable", "x", "--enable=y", "--disable", "z"], {"config": ["a=1"]}),
        (
            ["--strict-config", "-c", 'model="o3"', "-c", "tools.web_search=true"],
            {"strict_config": True, "config": ['model="o3"', "tools.web_search=true"]},
        ),
        (["--log-level", "debug", "--log-format=json"], {"log_level": "debug", "log_format": "json"}),
    ],
    ids=lambda value: " ".join(value)[:40],
)
def test_valid_options_are_read(argv: list[str], changed: dict[str, object]) -> None:
    default = Options("ws://127.0.0.1:0", None, None, None, None, False, [], False, None, "text")
    assert parse(argv) == default._replace(**changed)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("override", "text"),
    [
        ("foo=1", "unknown configuration field `foo` in -c/--config override"),
        ("foo.bar=1", "unknown configuration field `foo` in -c/--config override"),
        ("nokey", "Invalid override (missing '='): nokey"),
        ("=1", "Empty key in override: =1"),
    ],
)
def test_strict_config_refuses_a_field_nobody_knows(override: str, text: str) -> None:
    with pytest.raises(ConfigOverrideError) as refused:
        check_overrides(["model=x", override, "bar=1"])
    assert str(refused.value) == text
    with pytest.raises(Leave) as left:
        parse(["-c", override, "--strict-config"])
    assert (left.value.status, left.value.stderr) == (1, f"Error: {text}\n")


def test_every_option_of_the_help_is_read() -> None:
    own_ways_out = ("--help", "--version")
    for option in read_table(cli_help.HELP, frozenset(), {}).values():
        if option.name.startswith("--aws"):
            continue  # refused, as tests/test_codex_options.py tells
        values = {
            "--log-level": "info",
            "--log-format": "json",
            "--remote-transport": "noise",
            "--ws-auth": "capability-token",
            "--ws-max-clock-skew-seconds": "5",
            "--concurrent-requests": "2",
            "--keep-max": "8h",
            "--spool-max": "1G",
            "--allow-forward": "any",
            "--limit-process": "time=9s",
            "--limit-session": "processes=9",
            "--metrics": "127.0.0.1:9464",
            "--linux-sandbox-pid-namespace": "isolate",
        }
        value = values.get(option.name, "v")
        needed = {**NEEDS, "--audit-required": ("--audit",)}.get(option.name, ())
        companions = [name if name == "--chatgpt-token-stdin" else f"{name}=e" for name in needed]
        argv = [f"{option.name}={value}" if option.value else option.name, *companions]
        if option.name in own_ways_out:
            with pytest.raises(Leave) as left:
                parse(argv)
            assert not left.value.stderr.startswith("error:")
        else:
            assert parse(argv) is not None


@given(
    st.lists(
        st.one_of(st.sampled_from([*cli_help.HELP.split(), "-c", "--", "="]), st.text(max_size=8)), max_size=5
    )
)
def test_any_arguments_give_options_or_an_exit(argv: list[str]) -> None:
    try:
        outcome: Options | Leave = parse(argv)
    except Leave as left:
        outcome = left
    assert isinstance(outcome, Options) or outcome.status in (0, 1, 2)


def test_the_how_to_names_the_url_that_was_taken() -> None:
    text = announcing.how_to_try("ws://127.0.0.1:4567")
    assert "curl -i http://127.0.0.1:4567/readyz" in text
    assert "CODEX_EXEC_SERVER_URL=ws://127.0.0.1:4567 codex" in text


def test_the_embedding_function_refuses_a_bad_url_before_anything_starts() -> None:
    with pytest.raises(ExecServerListenUrlParseError):
        execserver.run_main_with_listen_url("http://x")
    assert execserver.run_main is cli.run_main


def test_an_unknown_name_of_the_package_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'nope'"):
        _ = execserver.nope
    assert set(dir(execserver)) == set(execserver.__all__)


# From here on: a process of its own.


def test_help_and_version_go_to_stdout() -> None:
    for flag in ("--help", "-h"):
        done = run(flag)
        assert (done.returncode, done.stdout, done.stderr) == (0, cli_help.HELP, "")
    for flag in ("--version", "-V"):
        done = run(flag)
        assert (done.returncode, done.stdout, done.stderr) == (
            0,
            f"execserver {execserver.__version__}\n",
            "",
        )


@pytest.mark.parametrize(
    ("argv", "status", "stderr"),
    [
        (
            ["--listen", "ws://localhost:0"],
            1,
            "Error: invalid websocket --listen URL `ws://localhost:0`; expected `ws://IP:PORT`\n",
        ),
        (["--listen", ""], 1, "Error: unsupported --listen URL ``; expected `ws://IP:PORT` or `stdio`\n"),
        (
            ["--listen", "ws://192.0.2.1:0", "--insecure-listen"],
            1,
            "Error: Address not available (os error 99)\n",
        ),
        (["--bogus"], 2, f"error: unexpected argument '--bogus' found\n{USAGE}{HINT}"),
        (
            ["--strict-config", "-cfoo=1"],
            1,
            "Error: unknown configuration field `foo` in -c/--config override\n",
        ),
    ],
    ids=lambda value: " ".join(value)[:30] if isinstance(value, list) else "",
)
def test_errors_go_to_stderr_and_nothing_to_stdout(argv: list[str], status: int, stderr: str) -> None:
    done = run(*argv)
    assert (done.returncode, done.stdout, done.stderr) == (status, "", stderr)


OTHERS_REACH = ["ws://0.0.0.0:0", "ws://[::]:0", "ws://192.0.2.1:0", "ws://[::ffff:192.0.2.1]:0"]
INSECURE = (
    "listening on `{}` without authentication lets whoever reaches it run commands as you\n"
    "  What to do: ask for a token with --ws-auth, listen on 127.0.0.1, or accept it with --insecure-listen\n"
)


@pytest.mark.parametrize("url", OTHERS_REACH)
def test_an_address_that_others_reach_needs_authentication(url: str) -> None:
    with pytest.raises(ExecServerListenUrlParseError):
        execserver.run_main_with_listen_url(url)
    done = run("--listen", url)
    assert (done.returncode, done.stdout, done.stderr) == (1, "", "Error: " + INSECURE.format(url))


@pytest.mark.parametrize("option", ["--insecure-listen", "--ws-auth"])
def test_an_open_address_serves_where_that_is_wanted(option: str, tmp_path: Path) -> None:
    (tmp_path / "token").write_text("x")
    rest = ["capability-token", "--ws-token-file", str(tmp_path / "token")] if option == "--ws-auth" else []
    with started("--listen", "ws://0.0.0.0:0", option, *rest) as process:
        assert stdout_line(process).startswith(b"ws://0.0.0.0:")
        assert process.stderr is not None
        process.terminate()
        assert process.stderr.read() == b""


def test_codex_only_warns_where_others_reach_it() -> None:
    with started("exec-server", "--listen", "ws://0.0.0.0:0") as process:
        assert stdout_line(process).startswith(b"ws://0.0.0.0:")
        assert process.stderr is not None
        process.terminate()
        assert process.stderr.read().decode() == "warning: " + INSECURE.format("ws://0.0.0.0:0")


def test_an_address_in_use_is_told_in_the_contracts_words() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        done = run("--listen", f"ws://127.0.0.1:{taken.getsockname()[1]}")
    assert (done.returncode, done.stdout, done.stderr) == (1, "", "Error: Address in use (os error 98)\n")


def test_a_broken_override_variable_is_told() -> None:
    done = run(env={"EXECSERVER_SETTINGS": '{"nope": 1}'})
    assert (done.returncode, done.stdout, done.stderr) == (1, "", "Error: there is no setting nope\n")


def test_the_default_prints_one_line_and_nothing_else() -> None:
    with started("--environment-id", "e", "--name", "n", "-c", "foo=1") as server:
        assert URL_LINE.fullmatch(stdout_line(server))
        server.terminate()
        assert server.wait(20) == 0
        assert server.stdout is not None
        assert server.stderr is not None
        assert (server.stdout.read(), server.stderr.read()) == (b"", b"")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_the_server_with_0(number: int) -> None:
    with started() as server:
        stdout_line(server)
        server.send_signal(number)
        assert server.wait(20) == 0


def test_an_ipv6_url_is_printed_in_brackets() -> None:
    need_ipv6()
    with started("--listen", "ws://[::1]:0") as server:
        assert re.fullmatch(rb"ws://\[::1\]:[1-9]\d*\n", stdout_line(server))


def test_info_logs_the_url_on_stderr() -> None:
    with started(env={"RUST_LOG": "info"}) as server:
        url = stdout_line(server).decode().strip()
        assert server.stderr is not None
        assert server.stderr.readline().decode().endswith(f"execserver listening on {url}\n")


def test_stdio_ends_with_its_input_and_prints_nothing_of_its_own() -> None:
    done = run("--listen", "stdio", stdin="")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_a_person_at_a_terminal_is_told_how_to_try_it() -> None:
    leader, follower = pty.openpty()
    seen = bytearray()
    os.set_blocking(leader, False)
    with subprocess.Popen(
        [sys.executable, "-I", SCRIPT], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=follower
    ) as server:
        os.close(follower)
        url = stdout_line(server).decode().strip()

        def told() -> bool:
            try:
                seen.extend(os.read(leader, 4096))
            except BlockingIOError:
                pass
            return f"CODEX_EXEC_SERVER_URL={url} codex".encode() in seen

        wait_until(told)
        server.terminate()
        assert server.wait(20) == 0
    os.close(leader)


def test_closed_standard_descriptors_do_not_confuse_it() -> None:
    server = shlex.join([sys.executable, "-I", str(SCRIPT)])
    script = f"exec {server} --listen ws://localhost:0 0<&- 1>&- 2>&-"
    assert subprocess.run(["/bin/sh", "-c", script], timeout=30, check=False).returncode == 1

"""The shell tool where the machine has rules for the network: a real shell, supervisor, sandbox and proxy."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import gevent
import pytest
from gevent import socket

from execserver.egress.rules_file import parse_rules
from execserver.mcp.elicitation import Answer, HostQuestion, Question, message_of
from execserver.mcp.tool import ToolError
from execserver.sandbox.backends import bwrap
from execserver.sandbox.backends.bwrap import Bwrap
from execserver.sandbox.backends.probe_bwrap import try_bwrap
from execserver.sandbox.proxy.routes import HTTP_PORT
from execserver.zygote.confinement import BUBBLEWRAP, NATIVE, Confinement
from tests.mcp.calling import Calls, Person, allow, forbid, nobody, prompt

FULL = {"type": "danger-full-access"}
ONLINE = {
    "type": "workspace-write",
    "network_access": True,
    "exclude_slash_tmp": True,
    "exclude_tmpdir_env_var": True,
}
SCRIPT = (
    "ask() { exec 3<>/dev/tcp/127.0.0.1/${http_proxy##*:};"
    ' printf "GET $1 HTTP/1.1\\r\\nHost: $2\\r\\n\\r\\n" >&3; head -n 1 <&3; }; '
)


class Web:
    """A server on loopback; it answers each request and counts them."""

    def __init__(self) -> None:
        self._sock = socket.socket()
        self._sock.bind(("127.0.0.1", 0))
        self._sock.listen(8)
        self.port = self._sock.getsockname()[1]
        self.requests = 0
        self._greenlet = gevent.spawn(self._serve)

    def _serve(self) -> None:
        while True:
            connection, _ = self._sock.accept()
            with connection:
                connection.recv(4096)
                self.requests += 1
                connection.sendall(b"HTTP/1.1 200 Here\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")

    def ask(self, path: str = "/") -> str:
        """Return the words of a script that ask for a page through the proxy."""
        host = f"127.0.0.1:{self.port}"
        return f"ask http://{host}{path} {host}; "

    def close(self) -> None:
        self._greenlet.kill()
        self._sock.close()


@pytest.fixture(scope="module", autouse=True)
def bubblewrap() -> Bwrap | None:
    """The bubblewrap of this machine, if its networks can be joined.

    Tried before there is a spawner, whose process would inherit what the trial leaves to init.
    """
    found, _ = try_bwrap(b"/usr/bin:/bin:/usr/local/bin", b"/")
    return found if found is not None and found.joinable else None


@pytest.fixture(params=[NATIVE, BUBBLEWRAP], autouse=True)
def back_end(request: pytest.FixtureRequest, calls: Calls, bubblewrap: Bwrap | None) -> None:
    """Have each of both make the sandboxes of the calls."""
    if request.param == BUBBLEWRAP:
        if bubblewrap is None:
            pytest.skip("there is no bubblewrap here whose networks can be joined")
        confinement = Confinement(BUBBLEWRAP, b"", bwrap.encode(bubblewrap))
        calls.choose = lambda plan: confinement


@pytest.fixture
def web() -> Iterator[Web]:
    made = Web()
    yield made
    made.close()


def rules(web: Web, kind: str) -> Any:
    return parse_rules(f'{kind} = ["http://127.0.0.1:{web.port}"]')


@pytest.fixture(params=[FULL, ONLINE], ids=["unsandboxed", "sandboxed"])
def policy(request: pytest.FixtureRequest) -> dict[str, object]:
    chosen: dict[str, object] = request.param
    return chosen


def test_a_shell_reaches_what_is_allowed_and_is_told_of_the_rest(
    calls: Calls, web: Web, policy: dict[str, object]
) -> None:
    script = SCRIPT + web.ask() + "ask http://other.example/ other.example"
    done = calls.run(script, policy=policy, network_rules=rules(web, "allow"))
    assert done.output.replace("\r", "") == (
        "HTTP/1.1 200 Here\nHTTP/1.1 403 Forbidden\n"
        "[network] other.example:80 was refused (not_allowed); "
        'to let it through: allow = ["http://other.example"]\n'
    )
    assert web.requests == 1
    calls.wait_until_nothing_is_left()


def test_past_the_proxy_there_is_nothing(calls: Calls, web: Web, policy: dict[str, object]) -> None:
    done = calls.run(
        f"(: < /dev/tcp/127.0.0.1/{web.port}) 2> /dev/null || echo refused",
        policy=policy,
        network_rules=rules(web, "allow"),
    )
    assert (done.output, web.requests) == ("refused\n", 0)


@pytest.mark.parametrize(
    ("answer", "status"), [(Answer.ACCEPT, "200 Here"), (Answer.DECLINE, "403 Forbidden")]
)
def test_the_user_is_asked_once_about_a_host_in_review(
    calls: Calls, web: Web, answer: Answer, status: str
) -> None:
    asked: list[Question | HostQuestion] = []

    def ask(question: Question | HostQuestion) -> Answer:
        asked.append(question)
        return answer

    script = SCRIPT + web.ask() + web.ask("/again")
    done = calls.run(script, policy=ONLINE, ask=ask, network_rules=rules(web, "review"))
    lines = done.output.replace("\r", "").splitlines()
    assert lines[:2] == [f"HTTP/1.1 {status}"] * 2
    assert [message_of(each) for each in asked] == [
        f"Allow agent to connect to `http://127.0.0.1:{web.port}`?"
    ]


def test_a_call_that_makes_up_hosts_does_not_ask_for_ever(
    calls: Calls, web: Web, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("execserver.mcp.call_network.MOST_ASKED", 2)
    asked: list[str] = []

    def ask(question: Question | HostQuestion) -> Answer:
        asked.append(message_of(question))
        return Answer.DECLINE

    script = SCRIPT + "for n in 1 2 3 1 2 4; do ask http://n$n.review.example/ n$n.review.example; done"
    review = parse_rules('review = ["*.review.example"]')
    done = calls.run(script, policy=ONLINE, ask=ask, network_rules=review)
    assert done.output.count("403 Forbidden") == 6
    assert asked == [f"Allow agent to connect to `http://n{n}.review.example:80`?" for n in (1, 2)]


def test_the_time_of_a_call_does_not_run_while_the_user_thinks(calls: Calls, web: Web) -> None:
    def ask(question: Question | HostQuestion) -> Answer:
        gevent.sleep(3.5)  # the wait is what is tested
        return Answer.ACCEPT

    script = SCRIPT + web.ask()
    done = calls.run(script, policy=ONLINE, ask=ask, timeout_ms=3000, network_rules=rules(web, "review"))
    assert done.output.startswith("HTTP/1.1 200 Here")


def test_without_the_network_a_shell_stays_without(calls: Calls, web: Web) -> None:
    with pytest.raises(ToolError, match="socket: Operation not permitted"):
        calls.run("test ! $http_proxy && : < /dev/tcp/127.0.0.1/1", network_rules=rules(web, "allow"))


def test_a_program_outside_has_the_servers_variables(calls: Calls, web: Web) -> None:
    """It is in another network, where the shell's proxy is nobody's."""
    done = calls.run(
        "/usr/bin/env | grep -i -c 127.0.0.1:6100; /usr/bin/env | grep ^no_proxy",
        allow("/usr/bin/env"),
        policy=ONLINE,
        ask=nobody,
        env={"no_proxy": "mine"},
        network_rules=rules(web, "allow"),
    )
    assert done.output == "0\nno_proxy=mine\n"


def test_rules_decide_about_programs_of_a_shell_whose_network_is_managed(calls: Calls, web: Web) -> None:
    """Inside, outside, forbidden and asked about, beside hosts that are allowed and refused."""
    asked = Person(Answer.DECLINE)
    script = (
        SCRIPT
        + web.ask()
        + "/usr/bin/env printf 'out %s\\n' ${http_proxy##*:}; /bin/mktemp; /usr/bin/id || echo asked; "
        + "ask http://other.example/ other.example; (: < /dev/tcp/127.0.0.1/1) 2> /dev/null || echo alone"
    )
    chosen = (allow("/usr/bin/env"), forbid("/bin/mktemp"), prompt("/usr/bin/id"))
    done = calls.run(script, *chosen, policy=ONLINE, ask=asked.ask, network_rules=rules(web, "allow"))
    lines = done.output.replace("\r", "").splitlines()
    assert [line for line in lines if "Execution" not in line] == [
        "HTTP/1.1 200 Here",
        f"out {HTTP_PORT}",
        "asked",
        "HTTP/1.1 403 Forbidden",
        "alone",
        "[network] other.example:80 was refused (not_allowed); "
        'to let it through: allow = ["http://other.example"]',
    ]
    assert sum("Execution forbidden" in line or "Execution denied" in line for line in lines) == 2
    assert [each.argv for each in asked.asked] == [["/usr/bin/id"]]
    calls.wait_until_nothing_is_left()


def test_a_shell_has_nothing_open_that_leads_to_its_proxy_or_its_supervisor(calls: Calls, web: Web) -> None:
    script = "for one in /proc/self/fd/*; do test -e $one && echo ${one##*/}; done"
    done = calls.run(script, policy=ONLINE, network_rules=rules(web, "allow"))
    assert done.output.split() == ["0", "1", "2"]


def test_where_the_networks_of_bubblewrap_cannot_be_entered_the_shell_is_refused(
    calls: Calls, web: Web
) -> None:
    """Nobody could make the proxy's ports there.  None is started, so there need be no bubblewrap."""
    program = Bwrap(b"/usr/bin/bwrap", (1, 2, 3, 4), False, "0.8.0", joinable=False)
    confinement = Confinement(BUBBLEWRAP, b"", bwrap.encode(program))
    calls.choose = lambda plan: confinement
    with pytest.raises(ToolError, match="the networks of this bubblewrap cannot be joined"):
        calls.run("echo here", allow("/usr/bin/env"), policy=ONLINE, network_rules=rules(web, "allow"))
    calls.wait_until_nothing_is_left()
    assert web.requests == 0

"""What a grant means for each method; that it holds in a sandbox is tested end to end (`test_grants.py`)."""

from __future__ import annotations

import pytest

from execserver.access.identity import NOBODY, Grant, Identity
from execserver.access.tokens.holder import Holder
from execserver.handlers import limits
from execserver.handlers.limits import REACH, Reach, limits_of
from execserver.protocol.methods import METHODS
from execserver.sandbox.client_limits import Limits
from execserver.sandbox.plan import NETWORK_NONE, ROOT_READ_ONLY, WRITE
from execserver.sandbox.plan_record import decode_plan
from tests.handlers.asking import Client
from tests.handlers.processes import start

pytestmark = pytest.mark.usefixtures("loop_failures")

READER = Grant(read_only=True)


def hold(client: Client, grant: Grant | None) -> None:
    client.connection.identity = Identity("token", "t", grant)


def test_every_method_has_been_decided_about() -> None:
    """A method of yours is missing?  Say in REACH how far it reaches; without, holders are refused it."""
    assert set(REACH) == set(METHODS)


def test_every_method_with_a_sandbox_member_is_laid_under_the_limits() -> None:
    with_sandbox = {
        name
        for name, method in METHODS.items()
        if "sandbox" in getattr(method.params, "__struct_fields__", ())
    }
    # Of a sandbox, ports take only whether it has the network, and the limits decide about that before.
    ports = {name for name in with_sandbox if name.startswith("port/")}
    assert with_sandbox - ports <= {name for name, reach in REACH.items() if reach is Reach.SANDBOX}
    assert ports <= {name for name, reach in REACH.items() if reach is Reach.NETWORK}
    assert {"process/start", "fs/writeFile", "fs/copy"} <= with_sandbox


def test_a_method_that_nobody_decided_about_is_refused(
    asking: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "REACH", {name: REACH[name] for name in REACH if name != "environment/info"})
    hold(asking, READER)
    refusal = (-32600, "environment/info is not granted to a client with limits")
    assert asking.ask("environment/info") == refusal
    for grant in (None, Grant()):
        hold(asking, grant)
        assert asking.ask("environment/info") != refusal


@pytest.mark.parametrize(
    ("grant", "expected"),
    [
        (None, None),
        (Grant(), None),
        (Grant(network=False), Limits(None, False)),
        (Grant(roots=("/a",)), Limits((b"/a",))),
        (Grant(roots=()), Limits(())),
        (READER, Limits(())),
        (Grant(("/a",), True, False), Limits((), False)),
        (Grant(("/a\udcff",)), Limits((b"/a\xff",))),
    ],
)
def test_limits_are_what_a_grant_takes_away(grant: Grant | None, expected: Limits | None) -> None:
    assert limits_of(grant) == expected


def test_a_request_without_a_sandbox_gets_one(asking: Client) -> None:
    hold(asking, Grant(roots=("/usr",), network=False))
    assert start(asking) == {"processId": "p", "sandboxType": "linuxSeccomp"}
    confinement = asking.server.spawner.runs[-1].spec.confinement
    assert confinement is not None
    plan = decode_plan(confinement.plan)
    assert (plan.root, plan.network) == (ROOT_READ_ONLY, NETWORK_NONE)
    assert [mount.path for mount in plan.mounts if mount.kind == WRITE] == [b"/usr"]


def test_nobody_in_particular_and_a_grant_without_limits_start_as_before(asking: Client) -> None:
    for number, identity in enumerate((NOBODY, Identity("token", "t", Grant()), Identity("jwt", "j"))):
        asking.connection.identity = identity
        answer = start(asking, processId=f"p{number}")
        assert answer == {"processId": f"p{number}", "sandboxType": "none"}
        assert asking.server.spawner.runs[-1].spec.confinement is None


def test_http_requests_are_refused_without_the_network_only(asking: Client) -> None:
    params = {"requestId": "r", "method": "GET", "url": "ftp://x/", "headers": []}
    hold(asking, Grant(network=False))
    code, message = asking.ask("http/request", **params)
    assert (code, message) == (-32600, "http/request needs the network, which is not granted to this client")
    hold(asking, READER)
    assert "granted" not in asking.ask("http/request", **params)[1]


def test_what_reads_files_outside_of_any_sandbox_is_refused(asking: Client) -> None:
    params = {"cwd": "file:///", "configPaths": [["a"]], "requirementsPaths": []}
    hold(asking, READER)
    refusal = (-32600, "environmentConfig/read is not granted to a client with limits")
    assert asking.ask("environmentConfig/read", **params) == refusal
    hold(asking, Grant())
    assert asking.ask("environmentConfig/read", **params) != refusal


def test_the_method_of_the_first_contract_gets_a_sandbox_too(asking: Client) -> None:
    hold(asking, READER)
    asking.ask("command/exec", processId="old", argv=["x"], cwd="/", env={}, tty=False)
    confinement = asking.server.spawner.runs[-1].spec.confinement
    assert confinement is not None
    assert decode_plan(confinement.plan).root == ROOT_READ_ONLY


def test_once_a_token_is_over_every_method_is_refused(asking: Client) -> None:
    reasons: list[str | None] = [None]
    asking.connection.identity = Holder("t", Grant(), lambda _: reasons[-1])
    assert start(asking)["processId"] == "p"
    reasons.append("expired execserver token")
    methods = {"process/list": {}, "environment/info": {}, "fs/close": {"handleId": "h"}}
    answers = [asking.ask(method, **params) for method, params in methods.items()]
    assert answers == [(-32600, "expired execserver token")] * len(methods)


def test_params_and_life_cycle_are_checked_first(handlers_server: object) -> None:
    """In the contract's order: a grant comes last."""
    client = Client(handlers_server, ready=False)  # type: ignore[arg-type]
    hold(client, Grant(network=False))
    params = {"requestId": "r", "method": "GET", "url": "ftp://x/", "headers": []}
    assert "must call initialize" in client.ask("http/request", **params)[1]

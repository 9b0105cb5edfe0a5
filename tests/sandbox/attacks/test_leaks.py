"""After a thousand sandboxed calls, and after kills, no mount, folder, process or descriptor is left."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from tests.conftest import LONG
from tests.e2e.sandbox_places import Place, place_for
from tests.e2e.sandboxed_calls import Files, workers_of
from tests.sandbox.attacks.conftest import GONE_S, started
from tests.support.proc import children_of, descendants_of, descriptor_count, zygotes_of
from tests.support.running import outcome
from tests.support.sandboxes import context, managed, read_only, rule, workspace_write
from tests.support.server_process import OURS
from tests.support.waiting import wait_until
from tests.support.ways import server_flavour

ROUND_CALLS = 15
CALLS = {"root": 1000, "other": 1000 if LONG else 150}
PROCESSES = {"root": 400 if LONG else 100, "other": 400 if LONG else 24}
MAX_WORKERS = 16


def mounts() -> list[str]:
    return sorted(line.split(" ")[4] for line in Path("/proc/self/mountinfo").read_text().splitlines())


def counts(server: int, zygote: int) -> tuple[int, int, int]:
    """Return the descriptors of both, and the number of processes below the zygote."""
    return descriptor_count(server), descriptor_count(zygote), len(descendants_of(zygote))


def policies(place: Place) -> list[Files]:
    narrow = context(managed(rule(place.ws, "write")), place.ws)
    return [Files(place, one) for one in (workspace_write(place.ws), read_only(place.ws), narrow)]


def one_round(place: Place, number: int) -> None:
    for files in policies(place):
        files.read(place.ws / "f")
        files.write(place.ws / f"n{number % 7}")
        files.read_opened(place.ws / "f")
        files.names(place.ws)
        files.ask("fs/remove", place.ws / f"n{number % 7}", force=True)


def test_a_thousand_calls_leave_nothing(place: Place, request: pytest.FixtureRequest) -> None:
    """All of the thousand as root; in a short run fewer of each kind on the other ways."""
    assert place.server is not None
    kind = "root" if request.node.callspec.params["attacked_server"] == "root" else "other"
    server, (zygote,) = place.server.pid, zygotes_of(place.server.pid)
    one_round(place, 0)
    place.run("true", workspace_write(place.ws))
    before = counts(server, zygote)
    mounted = mounts()
    for number in range(CALLS[kind] // ROUND_CALLS):
        one_round(place, number)
    for number in range(PROCESSES[kind]):
        end = ("true", "exit 3", "kill -9 $$", "sleep 600 & exit 0")[number % 4]
        place.run(end, workspace_write(place.ws) if number % 2 else read_only(place.ws))

    # The last command before may not have been let go when it was counted; of a thousand each would count.
    wait_until(lambda: all(now <= then for now, then in zip(counts(server, zygote), before, strict=True)))
    assert mounts() == mounted
    assert sorted(os.listdir(place.ws)) == ["f"]
    assert len(workers_of(server)) <= MAX_WORKERS


def _command(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def test_many_policies_have_few_workers(place: Place) -> None:
    assert place.server is not None
    (zygote,) = zygotes_of(place.server.pid)
    folders = [place.make(f"ws/d{number}/f", "x").parent for number in range(MAX_WORKERS + 8)]
    for folder in folders:
        files = Files(place, context(managed(rule(folder, "write")), place.ws))
        assert files.read(folder / "f") == b"x"
    # Children only, since bubblewrap adds two processes to each; a zygote may have two of its own besides.
    wait_until(lambda: len(children_of(zygote)) <= MAX_WORKERS + 2)


@pytest.mark.parametrize("kind", [pytest.param("root", marks=pytest.mark.long), "user", "bubblewrap-user"])
@pytest.mark.parametrize("victim", ["command", "zygote", "server", "everything at once"])
def test_after_a_kill_nothing_is_left(kind: str, victim: str) -> None:
    flavour = server_flavour(OURS, kind)
    with started(flavour) as server:
        peer = server.connect()
        peer.open_session()
        owner = int(Path(f"/proc/{server.pid}/status").read_text().split("Uid:")[1].split()[0])
        before = mounts()
        with place_for(peer, owner) as place:
            place.server = server
            one_round(place, 0)
            name = place.begin("mkdir .codex; setsid sleep 4321 & exec sleep 4321", workspace_write(place.ws))
            wait_until(lambda: len(_sleeping(descendants_of(server.pid))) == 2)
            (zygote,) = zygotes_of(server.pid)
            below = descendants_of(server.pid)
            inside = _sleeping(below)
            victims = {
                "command": inside[:1],
                "zygote": [zygote],
                "server": [server.pid],
                "everything at once": [server.pid, *below],
            }
            for pid in victims[victim]:
                _kill(pid)
            if victim in ("command", "zygote"):
                assert outcome(peer, name).exit_code == 137
                wait_until(lambda: not any(os.path.exists(f"/proc/{pid}") for pid in inside))
            else:
                server.wait()
                wait_until(lambda: not any(_lives(pid) for pid in below))
            if victim != "everything at once":
                wait_until(lambda: sorted(os.listdir(place.ws)) == ["f"], GONE_S)
            assert mounts() == before
        peer.close()


def _sleeping(pids: list[int]) -> list[int]:
    return [pid for pid in pids if _command(pid) == b"sleep\x004321\0"]


def _kill(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        pass


def _lives(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False

"""The unit of deploy/ under a real systemd with all of cgroup v2: start, delegation, limits, reload, end.

Its client is netcat on one connection, with frames that were written beforehand: another start of the program
would take an emulated machine half a minute.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterator
from typing import NamedTuple

import pytest

from tests.machines import system
from tests.machines.initramfs import Files, file, folder
from tests.machines.machine import run
from tests.machines.service_manager import BOOT, with_systemd
from tests.machines.test_limits import EATS, MIB, told
from tests.machines.virtual import PROGRAM, machine_with
from tests.support.peer import Json
from tests.support.source import ROOT
from tests.support.ws_peer import TEXT, client_frame

pytestmark = [pytest.mark.long, pytest.mark.timeout(1800)]

UNIT = "execserver.service"
# What the page tells an operator to lay over it; a limit for all of it, and patience with an emulator.
(FLEET,) = re.findall(r"^```conf\n(.*?)```", (ROOT / "docs/operations.md").read_text(), re.S | re.M)
ALL = "[Service]\nMemoryMax=400M\nWatchdogSec=300\n"
OPENING = (
    b"GET / HTTP/1.1\r\nHost: 127.0.0.1:4567\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    b"Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\nSec-WebSocket-Version: 13\r\n\r\n"
)
CHECK = """[Unit]
DefaultDependencies=no
After=execserver.service
[Service]
Type=oneshot
StandardOutput=file:/root/said
StandardError=inherit
ExecStart=/bin/sh /root/check
ExecStopPost=/bin/systemctl exit --force
"""
# Each line begins with what it is about; `out` is all that the server has sent.
SCRIPT = """
told() { sed "s/^/$1: /"; }
show() { systemctl show execserver --value -p "$1"; }
closed() {
    tries=0
    until [ "$(grep -ao '"process/closed"' /root/out | wc -l)" -ge "$1" ] || [ $tries -gt 600 ]; do
        sleep 0.5
        tries=$((tries+1))
    done
}
upgrades() { journalctl -u execserver -p "$1" -o cat | grep -c "upgraded from"; }
mkfifo /root/in
show ActiveState | told state
nc 127.0.0.1 4567 </root/in >/root/out &
exec 3>/root/in
cat /root/first >&3
closed CLOSED
before=$(show MainPID)
systemctl reload execserver
tries=0
until [ "$(upgrades info)" = 1 ] || [ $tries -gt 600 ]; do sleep 0.5; tries=$((tries+1)); done
echo "same process: $([ "$(show MainPID)" = "$before" ] && echo yes)"
cat /root/second >&3
closed $((CLOSED+1))
upgrades info | told info
upgrades warning | told warning
show NRestarts | told restarts
cat /sys/fs/cgroup/system.slice/execserver.service/cgroup.subtree_control | told delegated
systemctl stop execserver
show Result | told stopped
ps -o user | grep -c devbox | told left
execserver audit verify /var/log/execserver | told audit
base64 -w 0 /root/out | told out
echo
"""


SPIN = "while :; do :; done"
GROUP = "g=/sys/fs/cgroup$(sed s/0::// /proc/self/cgroup)"
PROCESSES: dict[str, tuple[str, Json]] = {
    "memory": (EATS.format(24 * MIB), {"memoryBytes": 16 * MIB}),
    "pids": (
        f"{GROUP}; (for i in 1 2 3 4 5 6 7 8 9; do sleep 3 & done); read most <$g/pids.max; echo most $most",
        {"processes": 6},
    ),
    "cpu": (
        f"{GROUP}; ({SPIN}) & sleep 5; cat $g/cpu.max; grep usage_usec $g/cpu.stat",
        {"cpuPercent": 20, "wallMs": 60_000},
    ),
    "time": ("setsid sh -c 'sleep 100 & sleep 100' & sleep 100", {"wallMs": 500}),
    "outside": ("cat /proc/self/cgroup", None),
    "doctor": ("execserver doctor | grep -E 'control-groups|limit-'", None),
    "service": (EATS.format(600 * MIB), {"memoryBytes": 1024 * MIB}),
}


def request(number: int, method: str, **params: object) -> bytes:
    text = json.dumps({"id": number, "method": method, "params": params})
    return client_frame(TEXT, text.encode())


def first() -> Iterator[bytes]:
    """Yield what the client sends before the reload."""
    yield OPENING
    yield request(0, "initialize", clientName="test")
    yield client_frame(TEXT, b'{"method":"initialized","params":{}}')
    yield start(1, "stays", "cat", None, pipeStdin=True)
    for number, (name, (script, limits)) in enumerate(PROCESSES.items(), 2):
        yield start(number, name, script, limits)


def start(number: int, name: str, script: str, limits: Json, **more: object) -> bytes:
    argv, env = ["sh", "-c", script], {"PATH": "/usr/local/bin:/usr/bin:/bin", "HOME": "/home/devbox"}
    env["EXECSERVER_CACHE_DIR"] = "/var/cache/execserver"
    params = {"processId": name, "argv": argv, "cwd": "file:///", "env": env, "tty": False, **more}
    return request(number, "process/start", **params, **({} if limits is None else {"limits": limits}))


def second() -> Iterator[bytes]:
    """Yield what it sends behind it, on the same connection, to the process that has stayed."""
    chunk = base64.b64encode(b"still here\n").decode()
    yield request(20, "process/write", processId="stays", chunk=chunk, writeId="w")
    yield request(21, "process/closeStdin", processId="stays")


def files() -> Files:
    small = system.system("x86_64")
    script = SCRIPT.replace("CLOSED", str(len(PROCESSES)))
    wants = f"[Unit]\nDefaultDependencies=no\nWants=systemd-journald.service {UNIT} check.service\n"
    return with_systemd(
        {
            "usr/local/bin/execserver": file(PROGRAM.read_bytes(), 0o755),
            f"etc/systemd/system/{UNIT}": file((ROOT / "deploy/systemd" / UNIT).read_bytes()),
            f"etc/systemd/system/{UNIT}.d/fleet.conf": file(FLEET.encode()),
            f"etc/systemd/system/{UNIT}.d/test.conf": file(ALL.encode()),
            "etc/systemd/system/check.target": file(wants.encode()),
            "etc/systemd/system/check.service": file(CHECK.encode()),
            "etc/passwd": file(small["etc/passwd"].data + b"devbox:x:1001:1001::/home/devbox:/bin/bash\n"),
            "etc/group": file(small["etc/group"].data + b"devbox:x:1001:\n"),
            "home/devbox": folder(0o777),
            "root/check": file(script.encode()),
            "root/first": file(b"".join(first())),
            "root/second": file(b"".join(second())),
        }
    )


class Found(NamedTuple):
    """What was said in the machine, by what it is about, and what the server has sent to its client."""

    said: dict[str, list[str]]
    sent: list[Json]

    def exit_of(self, name: str) -> Json:
        """Return the end of a process."""
        (params,) = [each["params"] for each in self._about(name) if each["method"] == "process/exited"]
        return params

    def output_of(self, name: str) -> bytes:
        """Return what a process has put out."""
        chunks = [each["params"] for each in self._about(name) if each["method"] == "process/output"]
        return b"".join(base64.b64decode(chunk["chunk"]) for chunk in chunks)

    def _about(self, name: str) -> list[Json]:
        return [each for each in self.sent if each.get("params", {}).get("processId") == name]


def messages(data: bytes) -> Iterator[Json]:
    """Yield the messages of a server's frames."""
    data = data.partition(b"\r\n\r\n")[2]
    while data:
        size, at = data[1], 2
        if size >= 126:
            at = 4 if size == 126 else 10
            size = int.from_bytes(data[2:at])
        if data[0] & 15 == TEXT:
            yield json.loads(data[at : at + size])
        data = data[at + size :]


@pytest.fixture(scope="module")
def found() -> Found:
    machine, contents = machine_with(files, memory_mib=1536)
    outcome = run(machine, contents, BOOT, limit_s=900)
    said: dict[str, list[str]] = {}
    for line in outcome.lines:
        about, _, text = line.partition(": ")
        said.setdefault(about, []).append(text)
    assert "out" in said, outcome.lines[-40:]  # the script came to its end
    return Found(said, list(messages(base64.b64decode(said["out"][0]))))


def test_it_counts_as_started_once_it_serves_and_is_given_its_control_groups(found: Found) -> None:
    assert found.said["state"] == ["active"]
    assert set(found.said["delegated"][0].split()) == {"cpu", "memory", "pids"}
    place = rb"0::/system\.slice/execserver\.service/execserver\.\d+/s1/p\d+\n"
    assert re.fullmatch(place, found.output_of("outside"))
    lines = found.output_of("doctor").decode().splitlines()
    assert [line.split()[:2] for line in lines] == [
        ["yes", name] for name in ("control-groups", "limit-memory", "limit-processes", "limit-cpu")
    ]


def test_limits_are_held_by_an_ordinary_user(found: Found) -> None:
    ends = {name: told(found.exit_of(name)) for name, (_, limits) in PROCESSES.items() if limits}
    assert ends == {
        "memory": ("limit", "memoryBytes", "process"),
        "time": ("deadline", "wallMs", "process"),
        "service": ("limit", "memoryBytes", "service"),  # and systemd ends the unit for none of these
        **dict.fromkeys(("pids", "cpu")),
    }
    assert b"can't fork" in found.output_of("pids")
    assert b"most 6\n" in found.output_of("pids")
    share, used = found.output_of("cpu").decode().splitlines()
    assert share == "20000 100000"
    assert 400_000 <= int(used.split()[1]) <= 2_000_000  # of five seconds, or somewhat more


def test_a_reload_upgrades_the_service_and_its_connections_and_processes_go_on(found: Found) -> None:
    assert found.said["same process"] == ["yes"]
    assert found.output_of("stays") == b"still here\n"
    assert found.said["restarts"] == ["0"]


def test_the_journal_knows_the_levels(found: Found) -> None:
    assert (found.said["info"], found.said["warning"]) == (["1"], ["0"])


def test_its_audit_log_is_its_own_and_is_found_intact(found: Found) -> None:
    assert re.match(r"intact: \d\d records, head [0-9a-f]{64}$", found.said["audit"][0])


def test_it_ends_in_order_and_leaves_nobody(found: Found) -> None:
    assert (found.said["stopped"], found.said["left"]) == (["success"], ["0"])

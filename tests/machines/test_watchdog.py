"""A server that stands still under a real systemd: it is ended by WatchdogSec, and started again.

It is the unit of deploy/ with a shorter time, and once more with a keeper in front of the server.
"""

from __future__ import annotations

import pytest

from tests.machines import system
from tests.machines.initramfs import Files, file, folder
from tests.machines.machine import run
from tests.machines.service_manager import BOOT, with_systemd
from tests.machines.test_systemd import CHECK
from tests.machines.virtual import PROGRAM, machine_with
from tests.support.source import ROOT

pytestmark = [pytest.mark.long, pytest.mark.timeout(1800)]

SHIPPED = (ROOT / "deploy/systemd/execserver.service").read_text()
# Time enough for an emulator, between READY and the first sign of life, too.
SHORT = "[Service]\nWatchdogSec=20\n"
KEPT = (
    SHORT
    + "ExecStart=\nExecStart=/usr/local/bin/execserver --listen ws://127.0.0.1:4568 --survive-crash\n"
    + "CacheDirectory=kept\nEnvironment=EXECSERVER_CACHE_DIR=/var/cache/kept\n"
)
UNITS = ("execserver", "kept")
SCRIPT = """
show() { systemctl show $1 --value -p $2; }
settled() {
    tries=0
    until [ "$(show $1 NRestarts)" = $2 ] && [ "$(show $1 ActiveState)" = active ] || [ $tries -gt 400 ]; do
        sleep 0.5
        tries=$((tries+1))
    done
}
for unit in execserver kept; do
    settled $unit 0
    sleep 45  # more than twice the time: it is alive, and stays
    echo "$unit lived: $(show $unit NRestarts) $(show $unit ActiveState)"
    before=$(show $unit MainPID)
    stopped=$before
    [ $unit = kept ] && read -r stopped </proc/$before/task/$before/children
    for pid in $stopped; do kill -STOP $pid; done
    settled $unit 1
    echo "$unit after: $(show $unit NRestarts) $(show $unit ActiveState)"
    [ -e /proc/$before ] || echo "$unit first: gone"
    journalctl -u $unit -o cat | grep -m1 -o "Watchdog timeout" | sed "s/^/$unit why: /"
    systemctl stop $unit
done
ps -o user | grep -c devbox | sed 's/^/left: /'
"""


def files() -> Files:
    small = system.system("x86_64")
    wants = "[Unit]\nDefaultDependencies=no\nWants=systemd-journald.service check.service"
    wants += "".join(f" {unit}.service" for unit in UNITS) + "\n"
    after = " ".join(f"{unit}.service" for unit in UNITS)
    units = {}
    for unit, more in zip(UNITS, (SHORT, KEPT), strict=True):
        units[f"etc/systemd/system/{unit}.service"] = file(SHIPPED.encode())
        units[f"etc/systemd/system/{unit}.service.d/test.conf"] = file(more.encode())
    return with_systemd(
        {
            **units,
            "usr/local/bin/execserver": file(PROGRAM.read_bytes(), 0o755),
            "etc/systemd/system/check.target": file(wants.encode()),
            "etc/systemd/system/check.service": file(
                CHECK.replace("After=execserver.service", f"After={after}").encode()
            ),
            "etc/passwd": file(small["etc/passwd"].data + b"devbox:x:1001:1001::/home/devbox:/bin/bash\n"),
            "etc/group": file(small["etc/group"].data + b"devbox:x:1001:\n"),
            "home/devbox": folder(0o777),
            "root/check": file(SCRIPT.encode()),
        }
    )


@pytest.fixture(scope="module")
def said() -> list[str]:
    machine, contents = machine_with(files, memory_mib=1536)
    lines = run(machine, contents, BOOT, limit_s=900).lines
    assert "left: 0" in lines, lines[-40:]  # the script came to its end, and left nobody
    return list(lines)


@pytest.mark.parametrize("unit", UNITS)
def test_a_server_that_lives_is_left_alone_and_one_that_stands_still_is_started_again(
    said: list[str], unit: str
) -> None:
    assert [line for line in said if line.startswith(f"{unit} ")] == [
        f"{unit} lived: 0 active",
        f"{unit} after: 1 active",
        f"{unit} first: gone",
        f"{unit} why: Watchdog timeout",
    ]

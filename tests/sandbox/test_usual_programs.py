"""What people run in a sandbox goes on working under its filter: each program does a little of its work."""

from __future__ import annotations

import shutil

import pytest

from execserver.sandbox.plan import FILTER_OPEN, FILTER_RESTRICTED, NETWORK_HOST, NETWORK_NONE
from execserver.zygote.confinement import BUBBLEWRAP, LANDLOCK, NATIVE
from tests.sandbox.attacks.ground import Ground
from tests.support.roots import USERS
from tests.support.ways import Way, require

WAYS = (
    Way("native-user", USERS[-1], NATIVE),
    Way("landlock-user", USERS[-1], LANDLOCK, (), "filter"),
    Way("bubblewrap-setuid-user-filter", USERS[-1], BUBBLEWRAP, (), "filter"),
)
GIT = "git -c user.name=n -c user.email=e@e -c init.defaultBranch=main"
# Name, what it needs, script, output.  Scripts run in a writable folder that is HOME and TMPDIR, too.
EVERYWHERE = (
    (
        "git",
        "git",
        f"cd sub && {GIT} init -q r && cd r && {GIT} commit -q --allow-empty -m x && git log | wc -l",
        "5",
    ),
    ("make", "make", "printf 'all:\\n\\t@echo made\\n' > Makefile && make -s -j2", "made"),
    (
        "python",
        "python3",
        'python3 -c \'import subprocess as s; print(s.check_output(["echo", "x"]))\'',
        "b'x\\n'",
    ),
    (
        "node",
        "node",
        'node -e \'require("fs").readFile("f", "utf8", (e, t) => console.log(e || t))\'',
        "mine",
    ),
    ("perl", "perl", "perl -e 'print -t STDOUT ? 1 : 0, qx(echo x)'", "0x"),
    ("vim", "vim", "vim -es -u NONE -c '%s/mine/yours/' -c 'wq! g' f; cat g", "yours"),
    ("less", "less", "less f | cat", "mine"),
    ("cp", "cp", "cp --reflink=auto f g && cat g", "mine"),
    ("tar", "tar", "tar cf t f && tar tf t", "f"),
    ("java", "java", "java -Xshare:auto -version 2>&1 | grep -ci version", "1"),
    ("file locks", "flock", "flock f echo held", "held"),
    ("nice", "nice", "test $(nice -n 3 nice) = $(($(nice) + 3)) && echo nicer", "nicer"),
)
WITH_NETWORK = (
    ("gdb", "gdb", "gdb -q -batch -ex run -ex 'p 6*7' --args /bin/true 2>/dev/null | grep '42'", "$1 = 42"),
    (
        "strace",
        "strace",
        "strace -f -o trace sh -c 'true; /bin/true' && grep -c '^[0-9]* *execve(./bin/true' trace",
        "1",
    ),
    (
        "tmux",
        "tmux",
        "tmux -L x -f /dev/null new-session -d 'sleep 9' && tmux -L x ls | grep -c windows",
        "1",
    ),
    (
        "terminal",
        "script",
        "script -qec 'stty size >/dev/null && tty >/dev/null && echo on a terminal' /dev/null",
        "on a terminal",
    ),
    ("names", "getent", "getent hosts localhost | grep -c localhost", "1"),
    ("addresses", "ip", "ip -o link show lo | grep -c LOOPBACK", "1"),
    ("ssh agent", "ssh-agent", "ssh-agent sh -c 'ssh-add -l; true'", "The agent has no identities."),
    (
        "nested",
        "unshare",
        "unshare --user --map-root-user --mount sh -c 'mount -t tmpfs t sub && echo in'",
        "in",
    ),
)

# Landlock alone has no terminals to give, traces nothing and lets nothing be changed about modes and mounts.
NOT_BY_LANDLOCK = ("git", "gdb", "strace", "tmux", "terminal", "ssh agent", "nested")
NOT_REFUSED = ("nested",)  # wants the user namespaces that some ways do without


@pytest.fixture(params=WAYS, ids=str)
def way(request: pytest.FixtureRequest) -> Way:
    require(request.param)
    chosen: Way = request.param
    return chosen


@pytest.fixture
def ground(tmp_path: object, way: Way, request: pytest.FixtureRequest) -> Ground:
    return Ground(request.getfixturevalue("tmp_path"), way)


def check(ground: Ground, case: tuple[str, str, str, str], network: str, chosen: str) -> None:
    name, needed, script, expected = case
    if shutil.which(needed, path="/usr/bin:/bin:/usr/local/bin") is None:
        pytest.skip(f"there is no program {needed} on this machine")
    home = str(ground.ws).encode()
    env = (b"PATH=/usr/bin:/bin:/usr/local/bin", b"TERM=xterm", b"HOME=" + home, b"TMPDIR=" + home)
    done = ground.run(
        script, ground.plan(network, chosen, name == "nested"), env=(*env, b"TMUX_TMPDIR=" + home)
    )
    lacking = NOT_BY_LANDLOCK if ground.way.back_end == LANDLOCK else NOT_REFUSED
    if done.code and ground.way.refusal and name in lacking:
        pytest.skip(f"not by way of {ground.way}: {done.err or done.out}")
    assert (done.code, done.out.strip()) == (0, expected), done


@pytest.mark.parametrize("case", EVERYWHERE, ids=lambda case: case[0])
@pytest.mark.parametrize("network", ["off", "on"])
def test_the_usual_programs_work(ground: Ground, case: tuple[str, str, str, str], network: str) -> None:
    if network == "on":
        check(ground, case, NETWORK_HOST, FILTER_OPEN)
    else:
        check(ground, case, NETWORK_NONE, FILTER_RESTRICTED)


@pytest.mark.parametrize("case", WITH_NETWORK, ids=lambda case: case[0])
def test_with_the_network_open_so_do_debuggers_and_terminals(
    ground: Ground, case: tuple[str, str, str, str]
) -> None:
    check(ground, case, NETWORK_HOST, FILTER_OPEN)

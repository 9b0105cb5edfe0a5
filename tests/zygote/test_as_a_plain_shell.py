"""Shells and tools that start programs behave under supervision as without it: the same runs, compared."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import pytest

from execserver.zygote.confinement import LANDLOCK, NATIVE
from tests.zygote.plain_shell_scene import (
    NAMES,
    Stage,
    for_each,
    needs,
    shell_argv,
    shells,
)
from tests.zygote.supervised import FULL_ACCESS, PLACES, Supervised


@pytest.fixture
def stage(tmp_path: Path, zygote: Supervised, user: int) -> Stage:
    tmp_path.chmod(0o777)
    return Stage(tmp_path, zygote, user)


TO_A_FILE = 'P say to-a-file > "$HOME/file"; P cat "$HOME/file"'
HERE = "cat <<E | P cat\nhere\nE\n"  # for which some shells write a file
# What is forbidden may end before the signal comes, or after it.  And what a shell says of the end depends on
# when it hears of it: dash is silent if that is before its `kill` is over.
KILLED = """(P wait & kill -TERM $!; wait $!; echo "killed $?") 2> /dev/null
(P wait & kill -KILL $!; wait $!; echo "killed $?") 2> /dev/null
"""
# What every shell does with a program P.
SPAWNS = """
P say one 'two words' ""
P exit 3; echo "exit $?"
P kill KILL; echo "kill $?"
P kill TERM; echo "term $?"
P nosuch; echo "none $?"
echo in | P cat | tr a-z A-Z
P cat < /dev/null; echo "empty $?"
x=$(P say substituted); echo "<$x>"
P say to-a-file > "$HOME/file"; P cat "$HOME/file"
P say to-stderr >&2
P say both 2>&1 | P cat
(exec P say executed); echo "exec $?"
(cd / && P pwd)
A=1 P env A
P say background & wait $!; echo "wait $?"
(P wait & kill -TERM $!; wait $!; echo "killed $?") 2> /dev/null
(P wait & kill -KILL $!; wait $!; echo "killed $?") 2> /dev/null
P say and && echo yes || echo no
if P exit 0; then echo true; else echo false; fi
P exit 1 || echo or
for n in 1 2 3; do P say $n; done | sort
cat <<E | P cat
here
E
P say last 3>&1 >&3 | P cat; echo "last $?"
"""
TOOLS = """
timeout 20 P exit 5; echo "timeout $?"
printf '1\\n2\\n3\\n' | xargs -n1 P say; echo "xargs $?"
printf '1\\n2\\n3\\n' | xargs -P3 -n1 P say | sort
printf '0\\n' | xargs -n1 P exit; echo "xargs $?"
env -i PATH="$PATH" A=2 P env A; echo "env $?"
nice -n 1 P exit 6; echo "nice $?"
nohup P say nohup 2> /dev/null; echo "nohup $?"
setsid -w P exit 8; echo "setsid $?"
find "$HOME" -maxdepth 0 -exec P say {} \\; -exec P exit 1 \\; ; echo "find $?"
sh -c 'P exit 9'; echo "sh $?"
"""


@pytest.mark.parametrize("shell", ["bash", "dash"])
def test_a_shell_starts_programs_as_ever(stage: Stage, shell: str) -> None:
    stage.compare(shell_argv(shell, for_each(SPAWNS, "allowed")), NATIVE)


@pytest.mark.long
@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("shell", shells())
def test_every_shell_starts_every_program_as_ever(stage: Stage, shell: str, place: str) -> None:
    # Of the views that a test can have here, Landlock has none in which something can be written.
    text = SPAWNS
    if place == LANDLOCK:
        text = SPAWNS.replace(TO_A_FILE, "").replace(HERE, "")
    for name in NAMES:
        texts = text.replace(KILLED, "") if name == "forbidden" else text
        stage.compare(shell_argv(shell, for_each(texts, name)), place)


@pytest.mark.long
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("shell", shells())
def test_tools_start_programs_as_ever(stage: Stage, shell: str, name: str) -> None:
    stage.compare(shell_argv(shell, for_each(TOOLS, name)), FULL_ACCESS)


SIGNALS = """
for s in HUP TERM USR1 USR2 ALRM; do
  mkfifo "$HOME/p$s"
  P trap > "$HOME/p$s" &
  p=$!
  { read line; kill -$s $p; cat; } < "$HOME/p$s"
  wait $p; echo "$s $?"
done
trap '' USR1
P trap > "$HOME/ignored" & p=$!
until [ -s "$HOME/ignored" ]; do sleep 0.05; done
kill -USR1 $p; kill -TERM $p; wait $p; echo "ignored $?"; cat "$HOME/ignored"
timeout -s USR1 1 P trap; echo "timeout $?"
timeout -k 1 1 P wait; echo "timeout $?"
"""


@pytest.mark.long
@pytest.mark.parametrize("name", ["allowed", "asked", "unknown"])
@pytest.mark.parametrize("place", [NATIVE, FULL_ACCESS])
def test_signals_arrive_as_ever(stage: Stage, place: str, name: str) -> None:
    stage.compare(shell_argv("bash", for_each(SIGNALS, name)), place)


PYTHON = """
import asyncio, os, signal, subprocess, sys
from concurrent.futures import ThreadPoolExecutor
from subprocess import PIPE, STDOUT, TimeoutExpired
def tell(*words):
    print(*words, flush=True)
for p in ("allowed", "asked", "forbidden", "unknown"):
    path = __import__("shutil").which(p)
    tell(subprocess.call([p, "exit", "3"]), subprocess.getstatusoutput(f"{p} say x"))
    tell(subprocess.run([p, "cat"], input=b"x" * 100000, stdout=PIPE).stdout[-3:])
    tell(subprocess.run(f"{p} say shell | cat", shell=True, capture_output=True))
    tell(subprocess.run([p, "say", "a"], stdout=PIPE, stderr=STDOUT, close_fds=False).stdout)
    tell(subprocess.run([p, "pwd"], cwd="/", stdout=PIPE).stdout)
    tell(subprocess.run([p, "env", "A"], env={**os.environ, "A": "1"}, stdout=PIPE).stdout)
    tell(subprocess.run([p, "exit", "2"], start_new_session=True).returncode)
    tell(subprocess.run([p, "exit", "2"], process_group=0).returncode if sys.version_info >= (3, 11) else 0)
    tell(subprocess.run([p, "exit", "2"], preexec_fn=lambda: os.nice(1)).returncode)
    tell(subprocess.run([p, "kill", "KILL"]).returncode, subprocess.run([p, "kill", "TERM"]).returncode)
    if p != "forbidden":
        try:
            subprocess.run([p, "wait"], timeout=0.3)
        except TimeoutExpired:
            tell("timeout")
        for end in (subprocess.Popen.terminate, subprocess.Popen.kill):
            with subprocess.Popen([p, "wait"]) as child:
                end(child)
            tell(child.returncode)
        with subprocess.Popen([p, "trap"], stdout=PIPE, text=True) as child:
            tell(child.stdout.readline())
            child.send_signal(signal.SIGUSR1)
            tell(child.communicate(), child.returncode)
    tell(os.system(f"{p} exit 4"), os.popen(f"{p} say popen").read())
    tell(os.waitstatus_to_exitcode(os.waitpid(os.posix_spawn(path, [p, "exit", "5"], os.environ), 0)[1]))
    tell(os.spawnvp(os.P_WAIT, p, [p, "exit", "6"]))
    pid = os.fork()
    if not pid:
        os.execvp(p, [p, "say", "forked"])
    tell(os.waitpid(pid, 0)[1])
    with ThreadPoolExecutor(8) as pool:
        tell(sorted(pool.map(lambda n: subprocess.run([p, "exit", str(n)]).returncode, range(8))))
    async def several():
        made = [await asyncio.create_subprocess_exec(p, "say", str(n), stdout=PIPE) for n in range(5)]
        return [(await one.communicate())[0] for one in made]
    tell(asyncio.run(several()))
    reader, writer = os.pipe()
    tell(subprocess.run([p, "run", "sh", "-c", f"echo passed >&{writer}"], pass_fds=[writer]).returncode)
    os.close(writer)
    tell(os.read(reader, 100))
"""


@pytest.mark.long
@pytest.mark.parametrize("place", [NATIVE, FULL_ACCESS])
def test_python_starts_programs_in_every_way(stage: Stage, place: str) -> None:
    def sort(text: str) -> str:
        return "\n".join(sorted(text.splitlines()))

    needs("python3")
    # Without network the loop's own socket takes nothing, so it is never woken: supervised or not.
    text = PYTHON if place == FULL_ACCESS else PYTHON.replace("    tell(asyncio.run(several()))\n", "")
    out = stage.compare(["/usr/bin/python3", "-I", "-c", text], place, sort)
    assert out.count("trapped") == 3


MAKEFILE = """
all: $(addprefix t,1 2 3 4 5 6) sub
t%:
\t@allowed say $@ $(if $(findstring jobserver,$(MAKEFLAGS)),jobserver)
\t@asked say $@
\t@unknown say $@
\t@allowed run sh -c 'echo sub-$@'
sub: t1
\t@+allowed run $(MAKE) -s inner
inner: i1 i2
i%:
\t@allowed say $@
fails:
\t-allowed exit 3
\tforbidden say no
\techo unreached
"""


@pytest.mark.long
@pytest.mark.parametrize("place", [NATIVE, FULL_ACCESS])
def test_make_shares_its_jobs(stage: Stage, place: str) -> None:
    needs("make")
    runs = "make -s -j3 | sort; make fails; echo $?; allowed run make -s -j2 | sort"
    stage.compare(shell_argv("bash", f"cat > Makefile <<'E'\n{MAKEFILE}\nE\n{runs}"), place)


GIT = """
export GIT_CONFIG_NOSYSTEM=1 GIT_AUTHOR_DATE='2020-01-01 00:00' GIT_COMMITTER_DATE='2020-01-01 00:00'
git init -q -b main r && cd r
git config user.name n; git config user.email n@example.org
printf '#!/bin/sh\\nallowed say hook "$@"\\nP exit 0\\n' > .git/hooks/pre-commit
printf '#!/bin/sh\\nforbidden say msg\\nexit 0\\n' > .git/hooks/commit-msg
chmod +x .git/hooks/*
echo a > f; git add f; git commit -q -m one; echo "commit $?"
git -c core.pager='P cat' -p log --format=%s; echo "log $?"
GIT_EDITOR='P run sed -i s/^/edited-/' git commit -q --amend -e -m two; git log --format=%s
git -c alias.x='!P say alias' x; git clone -q . ../s; git -C ../s fetch -q; echo "fetch $?"
printf '#!/bin/sh\\nforbidden exit 0\\n' > .git/hooks/pre-commit
git commit -q --allow-empty -m no; echo "refused $?"
"""


@pytest.mark.long
@pytest.mark.parametrize("git", ["unknown", "allowed"])
@pytest.mark.parametrize("name", ["allowed", "unknown"])
def test_git_with_a_pager_and_hooks(stage: Stage, git: str, name: str) -> None:
    needs("git")
    text = for_each(GIT, name)
    if git == "allowed":  # what it starts is outside, too, and nobody is asked about it
        text = re.sub(r"^git ", "allowed run git ", text, flags=re.MULTILINE).replace("forbidden", "unknown")
    stage.compare(shell_argv("bash", text), FULL_ACCESS)


SSH = """
umask 077
ssh-keygen -q -t ed25519 -N '' -f key; ssh-keygen -q -t ed25519 -N '' -f host
cp key.pub authorized
printf 'HostKey %s\\nAuthorizedKeysFile %s\\nStrictModes no\\nUsePAM no\\nPidFile none\\nLogLevel QUIET\\n' \\
  "$PWD/host" "$PWD/authorized" > sshd_config
printf 'h %s' "$(cat host.pub)" > known
printf 'IdentityFile %s\\nIdentitiesOnly yes\\nUserKnownHostsFile %s\\nHostKeyAlias h\\nLogLevel ERROR\\n' \\
  "$PWD/key" "$PWD/known" > config
proxy="P run /usr/sbin/sshd -i -f $PWD/sshd_config"
echo in | P run ssh -F config -o ProxyCommand="$proxy" "$(id -un)@h" 'cat; exit 4'; echo "ssh $?"
ssh -F config -o ProxyCommand='P exit 1' x@h true 2> /dev/null; echo "no proxy $?"
"""


@pytest.mark.long
@pytest.mark.parametrize("name", ["allowed", "unknown"])
def test_ssh_with_a_proxy_command(stage: Stage, user: int, name: str) -> None:
    needs("ssh", "ssh-keygen")
    if not os.path.exists("/usr/sbin/sshd") or user:
        pytest.skip("no sshd can be started here by this user")
    Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)
    out = stage.compare(shell_argv("bash", for_each(SSH, name)), FULL_ACCESS)
    assert "no proxy" in out


PACKAGE = {
    "name": "x",
    "version": "1.0.0",
    "scripts": {
        "prebuild": "allowed say pre",
        "build": "asked say build && unknown say build",
        "postbuild": "allowed env npm_lifecycle_event",
        "fails": "allowed exit 3",
        "refused": "forbidden say x",
    },
}
NODE = """
const {spawnSync, execFileSync, spawn, execSync} = require("child_process");
for (const p of ["allowed", "asked", "forbidden", "unknown"]) {
  const {status, signal, stdout, stderr} = spawnSync(p, ["say", "x"], {encoding: "utf8"});
  console.log(p, status, signal, stdout, stderr);
  console.log(spawnSync(p, ["cat"], {input: "y", encoding: "utf8"}).stdout);
  console.log(spawnSync(p, ["exit", "4"]).status, spawnSync(p, ["kill", "KILL"]).signal);
  if (p != "forbidden") {
    console.log(execSync(`${p} say shell`, {encoding: "utf8"}));
    console.log(spawnSync(p, ["wait"], {timeout: 300}).signal);
  }
}
const child = spawn("allowed", ["trap"], {stdio: ["ignore", "pipe", "inherit"]});
child.stdout.once("data", () => child.kill("SIGUSR2"));
child.on("close", (code, signal) => console.log("closed", code, signal));
"""


@pytest.mark.long
def test_npm_and_node(stage: Stage) -> None:
    needs("node", "npm")
    package = json.dumps(PACKAGE)
    quiet = "export npm_config_update_notifier=false npm_config_loglevel=error npm_config_audit=false"
    text = f"""{quiet}; cat > package.json <<'E'\n{package}\nE\ncat > n.js <<'E'\n{NODE}\nE
    npm run -s build; echo "build $?"; npm run -s fails; echo "fails $?"
    npm run -s refused; echo "refused $?"
    allowed run npm run -s build; node n.js; echo "node $?" """
    stage.compare(shell_argv("bash", text), FULL_ACCESS)


@pytest.mark.long
@pytest.mark.parametrize("name", NAMES)
def test_gnu_parallel(stage: Stage, name: str) -> None:
    needs("parallel")
    text = """mkdir -p ~/.parallel; touch ~/.parallel/will-cite
    parallel -k -j4 P say ::: a b c d e f; echo "parallel $?"
    parallel -j4 --halt now,fail=1 P exit ::: 0 0 3 2> /dev/null; echo "halt $?"
    seq 20 | parallel -k --pipe -N5 P cat; parallel --timeout 1 P wait ::: 1; echo "timeout $?" """
    stage.compare(shell_argv("bash", for_each(text, name)), FULL_ACCESS)


@pytest.mark.long
@pytest.mark.parametrize("name", NAMES)
def test_a_terminal_of_script(stage: Stage, name: str) -> None:
    needs("script")
    text = """
    script -qec 'P say x; test -t 0 && echo terminal; P exit 3' /dev/null < /dev/null; echo "script $?"
    script -qec 'stty rows 33 cols 44; P run stty size' /dev/null < /dev/null
    script -qec 'P run sh -c "test -t 1 && echo out"' /dev/null < /dev/null
    script -qec 'P exit 4' /dev/null < /dev/null; echo "script $?"
    script -qec 'P kill TERM' /dev/null < /dev/null; echo "script $?"
    { sleep 1; printf '\\003'; sleep 1; } | timeout 20 script -qec 'P trap' /dev/null; echo "interrupt $?"
    """
    stage.compare(shell_argv("bash", for_each(text, name)), FULL_ACCESS)


@pytest.mark.long
@pytest.mark.parametrize("name", ["allowed", "asked", "unknown"])  # who is traced and refused, is killed
def test_strace_sees_what_runs_inside(stage: Stage, name: str) -> None:
    needs("strace")
    text = """strace -qq -f -e trace=none -e signal=none P say x; echo "strace $?"
    strace -qq -f -e trace=none -e signal=none sh -c 'P exit 3; P say y'; echo "strace $?"
    P run strace -qq -e trace=none -e signal=none sh -c 'exit 4'; echo "strace $?" """
    stage.compare(shell_argv("bash", for_each(text, name)), FULL_ACCESS)


@pytest.mark.long
@pytest.mark.parametrize("place", [NATIVE, FULL_ACCESS])
def test_what_is_accepted_for_a_descendant_is_made_each_time(stage: Stage, place: str) -> None:
    text = """mkdir "$HOME/made"; cd "$HOME/made"
    for n in $(seq 100); do (sh -c "for m in 1 2 3 4 5 6 7 8; do asked run mkdir $n-\\$m; done" &) done
    until [ $(ls | wc -l) = 800 ]; do sleep 0.1; done; ls | wc -l"""
    stage.compare(shell_argv("bash", text), place)


def test_the_plain_side_runs_at_all(stage: Stage) -> None:
    code, out, err = stage.plain(shell_argv("bash", for_each("P say x; P exit 3", *NAMES)))
    assert (code, out.split(), err.count("denied")) == (3, ["allowed", "x", "asked", "x", "unknown", "x"], 2)

"""Whoever asks for a program that runs outside has executed it, as far as its parent and its files can tell.

Nothing here measures time: each script would wait for ever if the asking process stayed in its exec.
"""

from __future__ import annotations

import errno
import platform
import textwrap
from pathlib import Path

import pytest

from execserver.sandbox.kernel.syscalls import Kernel
from execserver.zygote.supervision.exec_broker import STARTED_AT_ONCE
from execserver.zygote.supervision.stand_in.code import CODES
from execserver.zygote.supervision.stand_in.stand_ins import STAND_IN
from tests.zygote.confined_harness import records_folder
from tests.zygote.supervised import PLACES, Supervised, allow

pytestmark = pytest.mark.skipif(platform.machine() not in CODES, reason="there is no code for this CPU")

RULES = tuple(map(allow, ("cat", "bash", "sleep", "true", "false", "env", "grep")))


def script(code: str) -> str:
    """Return a command that runs a program in Python, with the standard library."""
    return f"python3 -I - <<'THE END'\nimport os, signal, subprocess\n{textwrap.dedent(code)}\nTHE END\n"


@pytest.fixture(autouse=True)
def open_to_all(tmp_path: Path) -> None:
    """Let everybody write to the temporary folder, programs outside included."""
    tmp_path.chmod(0o777)


@pytest.mark.parametrize("place", PLACES)
def test_a_parent_goes_on_and_its_pipes_end(zygote: Supervised, place: str) -> None:
    code = """
    cat = ["cat"]
    print(subprocess.run(cat, input=b"x" * 3000000, stdout=subprocess.PIPE).stdout == b"x" * 3000000)
    pipes = dict(stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    for more in ({}, {"close_fds": False}, {"preexec_fn": lambda: None}, {"start_new_session": True}):
        child = subprocess.Popen(cat, **pipes, **more)
        print(child.poll(), child.communicate(b"y", 20), child.returncode)
    """
    wanted = "True\n" + "None (b'y', None) 0\n" * 4
    assert zygote.call(script(code), *RULES, place=place) == (0, wanted, "")


@pytest.mark.parametrize("place", PLACES)
def test_many_at_once_run_at_once(zygote: Supervised, place: str, tmp_path: Path) -> None:
    met = f"echo x >> {tmp_path}/met; until [ $(wc -l < {tmp_path}/met) -ge 20 ]; do sleep 0.02; done"
    text = f"seq 20 | xargs -P20 -I N bash -c '{met}; exit 0'; echo $?"
    assert zygote.call(text, *RULES, place=place) == (0, "0\n", "")


def test_every_way_to_execute(zygote: Supervised) -> None:
    code = """
    from threading import Thread
    def meet(start):
        # The program reads what is written once its process has been started.
        reader, writer = os.pipe()
        os.set_inheritable(reader, True)
        pid = start(f"read -u {reader} x; exit $x")
        os.write(writer, b"7\\n")
        os.close(writer)
        os.close(reader)
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    def forked(act):
        def start(text):
            pid = os.fork()
            if pid == 0:
                act(text)
            return pid
        return start
    words = lambda text: ["bash", "-c", text]
    def by_thread(text):
        Thread(target=lambda: os.execv("/bin/bash", words(text))).start()
        signal.pause()
    def by_descriptor(text):
        os.execve(os.open("/bin/bash", os.O_PATH), words(text), {})
    def from_folder(text):
        os.chdir("/bin")
        os.execv("./bash", words(text))
    print(meet(lambda text: os.posix_spawn("/bin/bash", words(text), {})))
    print(meet(forked(lambda text: os.execv("/bin/bash", words(text)))))
    print(meet(forked(by_thread)), meet(forked(from_folder)))
    print(meet(forked(lambda text: os.execvp("dash", ["dash", "-c", f"exec /bin/bash -c {text!r}"]))))
    """
    assert zygote.call(script(code), *RULES) == (0, "7\n7\n7 7\n7\n", "")


def test_a_time_limit_and_a_signal_end_a_program(zygote: Supervised) -> None:
    code = """
    child = subprocess.Popen(["sleep", "60"])
    child.terminate()
    print(child.wait())
    child = subprocess.Popen(["sleep", "60"])
    child.kill()
    print(child.wait())
    try:
        subprocess.run(["sleep", "60"], timeout=0.1)
    except subprocess.TimeoutExpired:
        print("late", flush=True)
    os.system("timeout 0.1 sleep 60; echo $?")
    """
    assert zygote.call(script(code), *RULES) == (0, "-15\n-9\nlate\n124\n", "")


def test_a_program_that_cannot_be_executed_says_so_to_whoever_starts_it(
    zygote: Supervised, tmp_path: Path
) -> None:
    for name, text in (("no-interpreter", "#!/nowhere\n"), ("no-format", "text\n")):
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)
    code = f"""
    import errno
    for path in ("/nowhere/cat", "{tmp_path}/no-interpreter", "{tmp_path}/no-format"):
        try:
            print(subprocess.run([path]))
        except OSError as error:
            print(errno.errorcode[error.errno])
    """
    rules = allow("cat"), allow("no-interpreter"), allow("no-format")
    assert zygote.call(script(code), *rules) == (0, "ENOENT\nENOENT\nENOEXEC\n", "")


def test_more_that_cannot_be_executed_than_are_started_at_once_all_hear_of_it(
    zygote: Supervised, tmp_path: Path
) -> None:
    tool = tmp_path / "tool"
    tool.write_text("text\n")
    tool.chmod(0o755)
    code = f"""
    def attempt():
        try:
            os.execv("{tool}", ["tool"])
        except OSError as error:
            os._exit(error.errno)
    pids = [os.fork() or attempt() for _ in range({STARTED_AT_ONCE + 20})]
    print({{os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids}})
    """
    assert zygote.call(script(code), allow("tool")) == (0, f"{{{errno.ENOEXEC}}}\n", "")


def test_who_stands_in_has_nothing_open(zygote: Supervised) -> None:
    code = """
    pipes = dict(stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    child = subprocess.Popen(["bash", "-c", "exec 1>&-; read line; exit $line"], **pipes)
    print(child.stdout.read(), child.poll())
    child.communicate(b"9")
    print(child.returncode)
    """
    assert zygote.call(script(code), *RULES) == (0, "b'' None\n9\n", "")


def test_without_stand_ins_programs_run_as_well(user: int, tmp_path: Path) -> None:
    with Supervised(user, Kernel([STAND_IN]), records_folder(tmp_path, user)) as zygote:
        code = "print(subprocess.run(['bash', '-c', 'kill -9 $$']).returncode)"
        text = f"bash -c 'exit 5'; echo $?; {script(code)}"
        assert zygote.call(text, *RULES) == (0, "5\n137\n", "")

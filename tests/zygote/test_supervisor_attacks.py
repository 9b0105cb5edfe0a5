"""What a hostile program inside may try: nothing of it changes anything outside."""

from __future__ import annotations

import os
import platform
import struct
import threading
from pathlib import Path

import pytest

from execserver.sandbox.kernel.syscalls import Kernel
from execserver.sandbox.plan import FILTER_OPEN, NETWORK_HOST, ROOT_READ_ONLY, WRITE, SandboxPlan
from execserver.zygote.confinement import BUBBLEWRAP, LANDLOCK, NATIVE
from execserver.zygote.supervision.records import ACCEPT
from tests.support.roots import give, mount, plan
from tests.support.sandbox_init import MAKERS
from tests.zygote.python_inside import python
from tests.zygote.supervised import (
    FULL_ACCESS,
    PLACES,
    Supervised,
    allow,
    forbid,
    prompt,
)

FREE = plan(network=NETWORK_HOST, syscall_filter=FILTER_OPEN)  # where tracing and sockets are allowed
needs_x86 = pytest.mark.skipif(platform.machine() != "x86_64", reason="numbers and code of x86_64")


@pytest.fixture(params=MAKERS)
def maker(request: pytest.FixtureRequest) -> str:
    """Return what makes the sandboxes: Python, or the compiled template."""
    return str(request.param)


@pytest.fixture
def program(tmp_path: Path) -> str:
    """Return a program that leaves a mark in the temporary folder, where nothing inside may."""
    path = tmp_path / "evil"
    path.write_text(f"#!/bin/sh\necho was here >> {tmp_path}/mark\n")
    path.chmod(0o755)
    tmp_path.chmod(0o777)
    return str(path)


def test_only_the_copy_of_a_path_that_is_changed_meanwhile_runs_outside(
    zygote: Supervised, program: str, tmp_path: Path
) -> None:
    code = f"""
    good, evil = b"/usr/bin/true".ljust(64, b"\\0"), b"{program}".ljust(64, b"\\0")
    path = ctypes.create_string_buffer(good)
    page = mmap.mmap(-1, 4096)
    place = ctypes.addressof(ctypes.c_char.from_buffer(page))
    if os.fork() == 0:
        end = time.monotonic() + 3
        while time.monotonic() < end:
            page[:64] = good
            page[:64] = evil
        os._exit(0)
    for _ in range(80):
        in_child(lambda: call(59, ctypes.c_void_p(place), vector(b"x"), vector()))
    """
    assert zygote.call(python(code), allow("/usr/bin/true"))[0] == 0
    assert not (tmp_path / "mark").exists()


def test_a_path_that_renames_keep_from_being_followed_is_judged_or_refused(
    zygote: Supervised, tmp_path: Path
) -> None:
    """The kernel follows no `..` below a root while anything is renamed anywhere, and says EAGAIN."""
    renamed, is_over = tmp_path / "a", threading.Event()
    renamed.touch()

    def rename() -> None:
        while not is_over.is_set():
            os.rename(renamed, tmp_path / "b")
            os.rename(tmp_path / "b", renamed)

    thread = threading.Thread(target=rename)
    thread.start()
    try:
        paths = " ".join(["/bin/../bin/uname", "/bin" + "/../bin" * 40 + "/uname"] * 30)
        _, out, err = zygote.call(f"for path in {paths}; do $path; done", forbid("uname"))
    finally:
        is_over.set()
        thread.join()
    assert out == ""
    refused = ("Execution denied: Execution forbidden by policy", "Resource temporarily unavailable")
    assert [line for line in err.splitlines() if not line.endswith(refused)] == []
    assert len(err.splitlines()) == 60


@pytest.mark.parametrize("place", [NATIVE, FULL_ACCESS])
@pytest.mark.parametrize("path", ["root/bin/uname", "root/../bin/uname", "cwd/../bin/./uname"])
def test_a_path_through_a_magic_link_is_judged_by_its_name_or_leads_nowhere(
    zygote: Supervised, place: str, path: str
) -> None:
    """`/proc/self` is another process to who looks; where it is none, nothing is there."""
    code, out, err = zygote.call(f"cd /bin; /proc/self/{path}; /bin/echo on", forbid("uname"), place=place)
    assert (code, out) == (0, "on\n")
    assert err == "Execution denied: Execution forbidden by policy\n" or "required file not found" in err


@needs_x86
def test_a_folder_that_is_not_open_yet_is_answered_for_the_kernel(zygote: Supervised) -> None:
    """By the time that the kernel looks, another thread may have opened it."""
    code = """
    folder = os.open("/bin", os.O_RDONLY)
    def open_later():
        while True:
            os.dup2(folder, 77)
            os.close(77)
    def run():
        threading.Thread(target=open_later, daemon=True).start()
        while True:
            call(322, 77, b"uname", vector(b"uname"), vector(), 0)
    for _ in range(20):
        in_child(run)
    """
    assert zygote.call(python(code), forbid("uname"))[:2] == (0, "")


def test_a_page_that_never_comes_holds_nobody_up(zygote: Supervised, user: int) -> None:
    code = """
    uffd = call(323, ctypes.c_long(os.O_CLOEXEC | (1 if os.geteuid() else 0)))
    if uffd < 0:
        sys.exit(77)
    assert libc.ioctl(uffd, ctypes.c_ulong(0xC018AA3F), struct.pack("QQQ", 0xAA, 0, 0)) == 0
    page = mmap.mmap(-1, 4096)
    place = ctypes.addressof(ctypes.c_char.from_buffer(page))
    register = ctypes.create_string_buffer(struct.pack("QQQQ", place, 4096, 1, 0))
    assert libc.ioctl(uffd, ctypes.c_ulong(0xC020AA00), register) == 0
    print(call(59, ctypes.c_void_p(place), vector(b"x"), vector()) == -errno.EFAULT)
    print(call(59, b"/usr/bin/id", ctypes.c_void_p(place), vector()) == -errno.EFAULT, flush=True)
    # Of a program that runs inside in any case, only the kernel reads the arguments: its caller waits alone.
    threading.Thread(target=call, args=(59, b"/usr/bin/true", ctypes.c_void_p(place), vector())).start()
    if not os.geteuid():
        os.read(uffd, 32)
    os.execv("/usr/bin/id", ["id", "-u"])
    """
    code_, out, err = zygote.call(python(code), allow("id"), place=FULL_ACCESS)
    if code_ == 77:
        pytest.skip("this kernel has no userfaultfd for this user")
    assert (code_, out) == (0, f"True\nTrue\n{user}\n"), err


@pytest.mark.parametrize("how", ["chroot", "mounts"])
def test_another_root_or_other_mounts_lead_nowhere_outside(
    zygote: Supervised, user: int, how: str, tmp_path: Path, program: str
) -> None:
    # Root has no capabilities inside and can make no user namespace, so that everything here fails for it.
    enter = {
        "mounts": f"mount --bind {program} /usr/bin/id && id",
        "chroot": f"mkdir -p /dev/shm/usr/bin; cp {program} /dev/shm/usr/bin/id; chroot /dev/shm /usr/bin/id",
    }[how]
    _, out, err = zygote.call(f"PATH=$PATH:/usr/sbin; unshare -Urm sh -c '{enter}'", allow("id"), view=FREE)
    assert not (tmp_path / "mark").exists(), (out, err)
    assert "uid=" not in out


@pytest.mark.parametrize("place", PLACES)
def test_a_folder_that_was_replaced_is_not_entered_outside(
    zygote: Supervised, place: str, user: int, tmp_path: Path
) -> None:
    script = "mkdir -p /dev/shm/$$/a && cd /dev/shm/$$/a && rmdir ../a && /bin/pwd; rmdir /dev/shm/$$"
    _, out, _ = zygote.call(script, allow("pwd"), place=place)
    assert "/a\n" not in out


def test_who_is_traced_runs_inside_and_is_killed_where_it_must_not_run(zygote: Supervised) -> None:
    code = """
    def traced(path):
        pid = os.fork()
        if pid == 0:
            call(101, 0, 0, 0, 0)
            os.kill(os.getpid(), signal.SIGSTOP)
            os.execv(path, ["grep", "Seccomp:", "/proc/self/status"])
        os.waitpid(pid, 0)
        while True:
            call(101, 7, pid, 0, 0)
            _, status = os.waitpid(pid, 0)
            if not os.WIFSTOPPED(status):
                return print(os.waitstatus_to_exitcode(status), flush=True)
    traced("/usr/bin/grep")
    traced("/usr/bin/fgrep")
    """
    code_, out, err = zygote.call(python(code), allow("grep"), forbid("fgrep"), view=FREE)
    assert (code_, out) == (0, "Seccomp:\t2\n0\n-9\n")
    assert err.splitlines() == [
        "Execution denied: Execution forbidden by policy",
        "Execution failed: the process could not be ended, and was killed",
    ]


@pytest.mark.parametrize("place", [NATIVE, LANDLOCK])
def test_who_cannot_be_read_runs_nothing_or_is_read_all_the_same(zygote: Supervised, place: str) -> None:
    code = """
    libc.prctl(4, 0, 0, 0, 0)
    print(in_child(lambda: os.execv("/usr/bin/uname", ["uname"])))
    """
    code_, out, _ = zygote.call(python(code), forbid("uname"), place=place)
    assert (code_, out) in ((0, "1\n"), (0, "99\n"))


@needs_x86
def test_execveat_and_files_without_names_are_judged_as_what_they_are(zygote: Supervised) -> None:
    code = """
    uname = os.open("/usr/bin/uname", os.O_PATH)
    folder = os.open("/usr/bin", os.O_PATH)
    args = vector(b"x"), vector()
    def at(number, path, flags):
        return in_child(lambda: os._exit(-call(322, number, path, *args, flags)))
    print(at(uname, b"", 0x1000), at(folder, b"uname", 0), at(folder, b"../bin/./uname", 0))
    print(at(uname, b"", 0x11000), at(-100, b"/usr/bin/uname", 0x10000), at(999, b"uname", 0))
    copy = os.memfd_create("uname")
    os.write(copy, open("/usr/bin/true", "rb").read())
    print(at(copy, b"", 0x1000), flush=True)
    """
    code_, out, err = zygote.call(python(code), forbid("uname"), allow("memfd:uname (deleted)"))
    first, second, third = out.splitlines()
    assert (code_, first, third) == (0, "1 1 1", "0")
    checked = second.split()
    assert checked[2] == "9"
    assert set(checked[:2]) <= {"0", "22"}  # EINVAL before Linux 6.14
    assert err == "Execution denied: Execution forbidden by policy\n" * 3


@needs_x86
@pytest.mark.parametrize("place", [NATIVE, FULL_ACCESS])
def test_calls_by_other_numbers_start_nothing(zygote: Supervised, place: str) -> None:
    code = """
    libc.mmap.restype = ctypes.c_void_p
    place = libc.mmap(None, 4096, 7, 0x62, -1, 0)  # private, anonymous, in the low 2 GiB
    page = (ctypes.c_char * 4096).from_address(place)
    page[2048:2062] = b"/usr/bin/uname"
    # push rbx; mov eax, 11; mov ebx, path; xor ecx, ecx; xor edx, edx; int 0x80; pop rbx; ret
    path = struct.pack("I", place + 2048)
    code = bytes.fromhex("53b80b000000bb") + path + bytes.fromhex("31c931d2cd805bc3")
    page[: len(code)] = code
    foreign = ctypes.CFUNCTYPE(ctypes.c_int)(place)
    print(in_child(lambda: os._exit(-foreign())), flush=True)
    x32 = 0x40000000 | 520
    print(in_child(lambda: os._exit(-call(x32, b"/usr/bin/uname", vector(b"x"), vector()))), flush=True)
    """
    _, out, _ = zygote.call(python(code), place=place)
    assert out.splitlines() == (["-31", "-31"] if place == NATIVE else ["1", "-31"])


def test_nothing_inside_can_listen_itself(zygote: Supervised) -> None:
    code = """
    program = struct.pack("HBBI", 6, 0, 0, 0x7FFF0000)
    buffer = ctypes.create_string_buffer(program, 8)
    head = ctypes.create_string_buffer(struct.pack("@HP", 1, ctypes.addressof(buffer)))
    number = 317 if os.uname().machine == "x86_64" else 277
    print(errno.errorcode[-call(number, 1, 8, head)])
    """
    assert zygote.call(python(code)) == (0, "EBUSY\n", "")


@pytest.mark.parametrize("call", ["openat2", "close_range"])
def test_rules_hold_where_calls_are_refused(user: int, tmp_path: Path, call: str) -> None:
    with Supervised(user, Kernel([call]), os.fsencode(tmp_path)) as zygote:
        script = "uname; echo $?; id -u; nope; echo $?"
        rules = forbid("uname"), allow("id"), forbid("nope")
        code, out, err = zygote.call(script, *rules, place=FULL_ACCESS)
    assert (code, out) == (0, f"1\n{user}\n127\n")
    assert err.startswith("Execution denied: Execution forbidden by policy\n")


def catalogue(texts: dict[str, str]) -> bytes:
    """Return a compiled catalogue of messages."""
    pairs = sorted({"": "Content-Type: text/plain; charset=UTF-8\n", **texts}.items())
    tables, strings = [b"", b""], b""
    start = 28 + 16 * len(pairs)
    for kind in (0, 1):
        for pair in pairs:
            text = pair[kind].encode()
            tables[kind] += struct.pack("<2I", len(text), start + len(strings))
            strings += text + b"\0"
    numbers = (0x950412DE, 0, len(pairs), 28, 28 + 8 * len(pairs), 0, start)
    return struct.pack("<7I", *numbers) + tables[0] + tables[1] + strings


@pytest.mark.parametrize("place", [NATIVE, LANDLOCK])
def test_no_catalogue_or_zone_of_a_command_is_loaded_outside(
    zygote: Supervised, place: str, tmp_path: Path
) -> None:
    """A catalogue's texts are format strings: whoever chooses it runs code in the program."""
    folder = tmp_path / "evil" / "LC_MESSAGES"
    folder.mkdir(parents=True)
    (folder / "coreutils.mo").write_bytes(catalogue({"cannot access %s": "loaded %s"}))
    os.mkfifo(tmp_path / "zone")
    tmp_path.chmod(0o755)
    script = (
        f"export LC_ALL=C.UTF-8 LANGUAGE=../../..{tmp_path}/evil TZ=:{tmp_path}/zone\n"
        f"/bin/ls {tmp_path}/missing; /bin/date"
    )
    _, out, err = zygote.call(script, allow("ls"), allow("date"), place=place)
    assert "loaded" not in err
    assert f"{tmp_path}/missing" in err
    assert out


@pytest.mark.parametrize("place", [NATIVE, BUBBLEWRAP, LANDLOCK])
@pytest.mark.parametrize("how", ["kept", "replaced", "written to", "link changed"])
def test_what_was_changed_while_it_was_asked_about_does_not_run_outside(
    zygote: Supervised, place: str, how: str, user: int, tmp_path: Path
) -> None:
    work = tmp_path / "work"
    for name, said in (("a", "one"), ("b", "two")):
        tool = work / name / "tool"
        tool.parent.mkdir(parents=True)
        tool.write_text(f"#!/bin/sh\necho {said} $(grep NoNewPrivs /proc/self/status)\n")
        tool.chmod(0o755)
    (work / "here").symlink_to("a")
    give(work, user)
    change = {
        "kept": "true",
        "replaced": "mv b/tool a/tool",
        "written to": "cat b/tool > a/tool; touch -r b/tool a/tool",
        "link changed": "ln -sfn b here",
    }[how]
    view = SandboxPlan(ROOT_READ_ONLY, (mount(WRITE, work),), writable=(os.fsencode(work),))
    script = f"cd {work}; mkfifo go; here/tool & read < go; {change}; echo changed; wait"
    with zygote.shell(script, prompt("tool"), place=place, view=view) as shell:
        shell.follow(lambda: len(shell.questions) == 1)
        assert shell.questions[0].file == os.fsencode(work / "here" / "tool")
        (work / "go").write_text("go\n")
        shell.follow(lambda: "changed" in shell.out)
        shell.answer(shell.questions[0].number, ACCEPT)
        assert shell.end() == 0
        said, _, where = shell.out.splitlines()[-1].partition(" ")
    assert (said, where.endswith("0")) == (("one", True) if how == "kept" else ("two", False))


@pytest.mark.parametrize("place", [NATIVE, BUBBLEWRAP, LANDLOCK])
def test_the_shell_itself_stays_inside_whatever_a_rule_says_of_its_name(
    zygote: Supervised, place: str
) -> None:
    own = 'while read name value; do [ "$name" = NoNewPrivs: ] && echo own $value; done < /proc/self/status'
    script = f"{own}; /bin/grep NoNewPrivs /proc/self/status"
    _, out, _ = zygote.call(script, allow("bash"), allow("grep"), place=place)
    # The shell is not judged, and neither is what builds the sandbox; what the shell starts is, and allowed.
    assert [line.split()[1] for line in out.splitlines()] == ["1", "0"]


@pytest.mark.parametrize(
    "change", ["--reuid=65534", "--regid=65534 --keep-groups", "--groups=5", "--clear-groups"]
)
@pytest.mark.parametrize("place", [NATIVE, FULL_ACCESS])
def test_whoever_has_given_up_user_or_groups_gets_nothing_back_outside(
    zygote: Supervised, user: int, place: str, change: str
) -> None:
    script = f"setpriv {change} grep -E '^(Uid|Gid|Groups|NoNewPrivs):' /proc/self/status"
    given = zygote.call(script, place=place)
    if given[0]:
        pytest.skip("a command cannot change that here")
    if given[1] == zygote.call(script.replace(change, "--nnp"), place=place)[1]:
        pytest.skip("this user has nothing to give up here")
    assert zygote.call(script, allow("grep"), place=place) == given

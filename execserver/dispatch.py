"""Chooses which program this process is: by the name it was called with, or by its first argument.

Imports only `os` and `sys` before the choice, so that a helper process never pays for the server.
"""

from __future__ import annotations

import os
import sys

SERVER = "execserver.cli:main"
VERSION = "execserver.version:main"
CODEX = "execserver.verbs.codex:main"
CODEX_SERVER = "execserver.verbs.codex:serve"
SHELL_TOOL = "execserver.mcp.main:main"

# Name in argv[0] -> entry.  An entry finds its arguments in `sys.argv[1:]` and returns the exit status.
NAMES = {
    "codex-exec-server": SERVER,
    "codex-fs": "execserver._helpers.codex_fs:main",
    "codex-linux-sandbox": "execserver._helpers.linux_sandbox:main",
    "codex-exec-mcp-server": SHELL_TOOL,
    "codex-execve-wrapper": "execserver._helpers.execve_wrapper:main",
}

# A name that other programs have, too: a link of that name is made only when it is asked for.
CODEX_NAME = "codex"

# First argument -> entry: the verbs of the help text, ...
VERBS = {
    "doctor": "execserver.verbs.doctor:main",
    "relay": "execserver.verbs.relay:main",
    "mcp": SHELL_TOOL,
    "audit": "execserver.verbs.audit:main",
    "network": "execserver.verbs.network:main",
    "upgrade": "execserver.verbs.upgrade:main",
    "rules": "execserver.verbs.rules:main",
    "self-test": "execserver.verbs.self_test:main",
    "install-aliases": "execserver.verbs.aliases:main",
    "licenses": "execserver.verbs.licenses:main",
    "token": "execserver.verbs.token:main",
    "box": "execserver.verbs.box:main",
    "run": "execserver.verbs.run:main",
    "shell": "execserver.verbs.run:shell",
    "ps": "execserver.verbs.kept:ps",
    "attach": "execserver.verbs.kept:attach",
    "logs": "execserver.verbs.kept:logs",
    "wait": "execserver.verbs.kept:wait",
    "kill": "execserver.verbs.kept:kill",
    "cp": "execserver.verbs.cp:main",
    "edit": "execserver.verbs.edit:main",
    "find": "execserver.verbs.find:main",
    "grep": "execserver.verbs.find:grep",
    "sync": "execserver.verbs.sync:main",
    "forward": "execserver.verbs.forward_ports:main",
    "web": "execserver.verbs.web:main",
    "completion": "execserver.verbs.completion:main",
    "help": "execserver.verbs.help:main",
}
# ... and the hidden ones, for the server's own use and for callers that cannot choose argv[0].
ARGUMENTS = {
    **VERBS,
    "--execserver-zygote": "execserver._helpers.zygote:main",
    "--execserver-doctor": VERBS["doctor"],
    "--execserver-can-resume": "execserver.verbs.upgrade:can_resume",
    "--execserver-fs-worker": "execserver._helpers.fs_worker:main",
    "--execserver-search-lines": "execserver._helpers.search_lines:main",
    "--execserver-egress": "execserver.services.egress.standalone:main",
    "--codex-run-as-fs-helper": NAMES["codex-fs"],
    **NAMES,
}

# Programs with an event loop: they have ended everything of theirs, and the interpreter would take 15 ms
# more to take itself apart.  Meanwhile a thread of the loop's pool may come back from a slow disk or name
# server, to what is freed by then: a shell tool that ended so has died of SIGSEGV.
_WITH_LOOP = (
    *("relay", "self-test", "box", "run", "shell", "ps", "attach", "logs", "wait", "kill", "cp", "edit"),
    *("find", "grep", "sync", "forward", "web"),
)
# Programs that answer once: somebody waits for their end, and that would take a tenth of their time.
_ANSWERING = ("codex-fs", "codex-linux-sandbox", "codex-execve-wrapper", "--execserver-search-lines")
_AT_ONCE = frozenset(
    (
        *(SERVER, VERSION, CODEX, CODEX_SERVER, ARGUMENTS["--execserver-egress"]),
        *(ARGUMENTS[word] for word in (*_ANSWERING, *_WITH_LOOP)),
    )
)

# Options of the Codex CLI that may stand before its verb; those of the first group have a value.
_WITH_VALUE_BEFORE_VERB = ("-c", "--config", "--enable", "--disable")
_VALUE_JOINED = ("-c", *(f"{option}=" for option in _WITH_VALUE_BEFORE_VERB))

# New objects before a collection: more than loading a server makes, since what is loaded stays.  A server and
# a relay have their own number afterwards.
_COLLECT_AFTER = 100_000

_INTERRUPTED = 130

_COERCED_LOCALES = ("C.UTF-8", "C.utf8", "UTF-8")


def choose(argv: list[str]) -> tuple[str, list[str]]:
    """Return the entry, `module:function`, and its arguments for a command line.

    `codex-exec-server` in argv[0] decides nothing: a copy of this file with that name must be able to start
    itself as a zygote, by its first argument.
    """
    name = os.path.basename(argv[0]) if argv else ""
    if NAMES.get(name, SERVER) != SERVER:
        return NAMES[name], argv[1:]
    if len(argv) > 1 and argv[1].startswith("--") and argv[1] in ARGUMENTS:
        return ARGUMENTS[argv[1]], argv[2:]  # for its own use: every name must lead there
    if name == CODEX_NAME:
        return CODEX, argv[1:]
    if len(argv) > 1 and argv[1] in ARGUMENTS:
        return ARGUMENTS[argv[1]], argv[2:]
    if (words := without_verb(argv[1:])) is not None:
        return CODEX_SERVER, words
    if argv[1:] in (["--version"], ["-V"]):
        # Asked often, by users and scripts, and loading the command line would double its time.
        return VERSION, []
    return SERVER, argv[1:]


def without_verb(words: list[str]) -> list[str] | None:
    """Return a command line of the Codex CLI without its verb `exec-server`, None where that is not its verb.

    Options that stand before the verb come first, as if they stood behind it.
    """
    at = 0
    while at < len(words) and words[at] != "exec-server":
        word = words[at]
        if word in _WITH_VALUE_BEFORE_VERB:
            at += 2
        elif word == "--strict-config" or word.startswith(_VALUE_JOINED):
            at += 1
        else:
            return None
    if at >= len(words):
        return None
    before, behind = words[:at], words[at + 1 :]
    subcommand = 1 if behind[:1] in (["forward"], ["help"]) else 0
    return [*behind[:subcommand], *before, *behind[subcommand:]]


def main() -> int:
    """Run the chosen program and return its exit status."""
    _take_back_locale()
    entry, arguments = choose(sys.argv)
    import gc  # a part of the interpreter

    gc.set_threshold(_COLLECT_AFTER, 10, 10)
    module, _, function = entry.partition(":")
    sys.argv[1:] = arguments
    try:
        __import__(module)
        status: int = getattr(sys.modules[module], function)()
    except ImportError as error:
        complaint = missing_library(str(error))
        if complaint is None:
            raise
        if sys.stderr is not None:
            sys.stderr.write(complaint)
        return 1
    except KeyboardInterrupt:
        return _end_of_interrupt()
    if entry in _AT_ONCE:
        _end_at_once(status)
    return status


def missing_library(error: str) -> str | None:
    """Return what to tell a user whose machine lacks a library of the system; None for any other error.

    The zipapp and the wheel need some; images that were cut down to little more than Python lack them.
    """
    library, is_missing, _ = error.partition(": cannot open shared object file")
    if not is_missing:
        return None
    packages = " (`apt install libstdc++6`, `apk add libstdc++`)" if "libstdc++" in library else ""
    return (
        f"Error: this machine has no {library}, which a package of execserver needs\n"
        f"  What to do: install it{packages}, or use the single file execserver, which brings its own\n"
    )


def _end_at_once(status: int) -> None:
    """End this process, unless what it has printed cannot be written: then the interpreter tells that."""
    if _is_all_written():
        os._exit(status)


def _is_all_written() -> bool:
    """Write what was printed; tell whether it could be written."""
    try:
        for stream in (sys.stdout, sys.stderr):
            if stream is not None:  # it was closed when this process began
                stream.flush()
    except OSError:
        return False
    return True


def _end_of_interrupt() -> int:
    """End by SIGINT, so that a shell sees it, but without the interpreter's traceback."""
    import _signal  # type: ignore[import-not-found]

    _is_all_written()
    _signal.signal(_signal.SIGINT, _signal.SIG_DFL)
    os.kill(os.getpid(), _signal.SIGINT)
    return _INTERRUPTED  # where it is blocked


def _take_back_locale() -> None:
    """Undo what Python does to LC_CTYPE if no locale is set: commands must see what we were given."""
    if os.environ.get("LC_CTYPE") not in _COERCED_LOCALES:
        return
    try:
        with open("/proc/self/environ", "rb") as file:
            given = [entry for entry in file.read().split(b"\0") if entry.startswith(b"LC_CTYPE=")]
    except OSError:
        return
    if given:
        os.environb[b"LC_CTYPE"] = given[0].partition(b"=")[2]
    else:
        del os.environ["LC_CTYPE"]

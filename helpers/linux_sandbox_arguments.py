"""The command line of `codex-linux-sandbox`: its options, its help, and its error texts.

Options come before the command, which begins at the first word that is no option, or after `--`.  The error
texts are those of the reference's program.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

HELP = """\
Run a command in a sandbox.

Usage: codex-linux-sandbox [OPTIONS] --sandbox-policy-cwd <SANDBOX_POLICY_CWD> [COMMAND]...

Arguments:
  [COMMAND]...  The command and its arguments, best after `--`. It runs in the current directory; where the
                profile hides that, in HOME or else in `/`.

Options:
      --sandbox-policy-cwd <SANDBOX_POLICY_CWD>
          The directory that relative rules and project roots of the permission profile stand for
      --permission-profile <PERMISSION_PROFILE>
          What the command may do, as JSON with native paths, for example
          {"type":"managed","network":"restricted","file_system":{"type":"restricted","entries":[
            {"path":{"type":"special","value":{"kind":"root"}},"access":"read"},
            {"path":{"type":"special","value":{"kind":"project_roots"}},"access":"write"}]}}
      --command-cwd <COMMAND_CWD>
          How the caller names the current directory (default: the policy's). Named through a symlink, it
          is followed there, and must not be hidden
      --no-proc
          Accepted for older callers; where no new /proc can be mounted, none is, without being told
      --allow-network-for-proxy
          Let the command reach the proxies on loopback that its environment names, and no other network
      --network-rules <NETWORK_RULES>
          Let the command reach only what this file of rules lists (TOML: allow, deny), through a proxy that
          is made for it, and no other network
      --inherit-pid-namespace
          Let the command see all processes; only for profiles that Landlock expresses exactly
      --use-legacy-landlock
          Use Landlock without namespaces; only for profiles that it expresses exactly
      --apply-seccomp-then-exec
          Only give up privileges and filter system calls: the inner stage of another sandbox
      --proxy-route-spec <PROXY_ROUTE_SPEC>
          With the inner stage: which variables lead to which Unix sockets, as JSON
  -h, --help
          Print help

Exit status: that of the command, 128+N if signal N ended it; 1 when the sandbox cannot be made, 2 for wrong
usage, 101 when the command cannot be run.
"""

_POLICY_CWD = "--sandbox-policy-cwd"
_VALUES = {
    _POLICY_CWD: "policy_cwd",
    "--command-cwd": "command_cwd",
    "--permission-profile": "profile_text",
    "--proxy-route-spec": "route_spec",
    "--network-rules": "network_rules",
}
_FLAGS = {
    "--use-legacy-landlock": "use_landlock",
    "--apply-seccomp-then-exec": "inner",
    "--allow-network-for-proxy": "proxy",
    "--no-proc": "no_proc",
    "--inherit-pid-namespace": "shares_processes",
}
_TRY_HELP = "\n\nFor more information, try '--help'.\n"


class Options:
    """A parsed command line."""

    __slots__ = (
        *("command", "command_cwd", "inner", "network_rules", "no_proc", "policy_cwd", "profile_text"),
        *("proxy", "route_spec", "shares_processes", "use_landlock"),
    )

    def __init__(self) -> None:
        self.policy_cwd = ""
        self.command_cwd: str | None = None
        self.profile_text: str | None = None
        self.route_spec: str | None = None
        self.network_rules: str | None = None
        self.use_landlock = False
        self.inner = False
        self.proxy = False
        self.no_proc = False
        self.shares_processes = False
        self.command: list[str] = []


class Mistake(Exception):
    """The command line is wrong; the message is for stderr, the exit status is 2."""


class HelpWanted(Exception):
    """`--help` was given."""


def parse(arguments: Sequence[str]) -> Options:
    """Return the parsed command line.  Raises Mistake or HelpWanted, whichever has a cause first."""
    options = Options()
    seen: list[str] = []
    rest = list(arguments)
    while rest:
        word = rest.pop(0)
        if word == "--":
            options.command = rest
            break
        if not word.startswith("-") or word == "-":
            options.command = [word, *rest]
            break
        _take(options, seen, word, rest)
    if _POLICY_CWD not in seen:
        command = "<COMMAND>..." if options.command else "[COMMAND]..."
        missing = f"the following required arguments were not provided:\n  {_shown(_POLICY_CWD)}"
        raise Mistake(f"error: {missing}\n\nUsage: {_usage([_POLICY_CWD], command)}{_TRY_HELP}")
    return options


def _take(options: Options, seen: list[str], word: str, rest: list[str]) -> None:
    name, mark, value = word.partition("=")
    if word in ("-h", "--help"):
        raise HelpWanted
    if name in seen:
        text = f"the argument '{_shown(name)}' cannot be used multiple times"
        raise Mistake(f"error: {text}\n\nUsage: {_usage([])}{_TRY_HELP}")
    if name in _FLAGS and not mark:
        setattr(options, _FLAGS[name], True)
    elif name in _VALUES:
        if not mark:
            # A lone `-` may be a value; any other word with a dash is the next option.
            if not rest or (rest[0].startswith("-") and rest[0] != "-"):
                text = f"a value is required for '{_shown(name)}' but none was supplied"
                raise Mistake(f"error: {text}{_TRY_HELP}")
            value = rest.pop(0)
        setattr(options, _VALUES[name], value)
    else:
        tip = f"\n\n  tip: to pass '{word}' as a value, use '-- {word}'"
        text = f"unexpected argument '{word}' found{tip}"
        raise Mistake(f"error: {text}\n\nUsage: {_usage(seen)}{_TRY_HELP}")
    seen.append(name)


def _usage(seen: Sequence[str], command: str = "[COMMAND]...") -> str:
    """Return the usage line, which names the optional part unless the required option was seen."""
    optional = "" if _POLICY_CWD in seen else "[OPTIONS] "
    return f"codex-linux-sandbox {optional}{_shown(_POLICY_CWD)} {command}"


def _shown(name: str) -> str:
    return f"{name} <{name[2:].replace('-', '_').upper()}>" if name in _VALUES else name


def invalid_profile(text: str, reason: str) -> Mistake:
    """Return the mistake of a malformed permission profile."""
    shown = f"'{text}' for '{_shown('--permission-profile')}'"
    return Mistake(f"error: invalid value {shown}: invalid permission profile JSON: {reason}{_TRY_HELP}")

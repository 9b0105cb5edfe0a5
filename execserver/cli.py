"""The command line of the server: exact options, error texts and exit codes.

The help text (`cli_help`) is the grammar: the table of options is read from it, and `arguments` checks every
argument by that, with the texts and the exit codes of the wire contract, section 1.
"""

from __future__ import annotations

import os
import sys

from execserver.access.command_line import OPTIONS as ACCESS_OPTIONS
from execserver.access.command_line import check_secure, check_values, listen_and_entry
from execserver.announcing import announcer
from execserver.arguments import Mistake, Parsed, Program, read_table
from execserver.cli_help import HELP
from execserver.codex_options import INHERIT, STDIN_CREDENTIALS, refuse_direct, wrong_value
from execserver.leaving import failure, until_left, write
from execserver.listen_url import (
    DEFAULT_LISTEN_URL,
    ExecServerListenUrlParseError,
    InsecureListenUrl,
    Stdio,
    parse_listen_url,
)
from execserver.own_process import end_at_once_on_signals
from execserver.runtime_paths import ExecServerRuntimePaths
from execserver.settings import SettingError, Settings
from execserver.version import __version__
from execserver.zygote.launch import ensure_stdio

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import NamedTuple

    from execserver.access.entry import Entry
    from execserver.listen_url import Listen
    from execserver.remote.config import RemoteEnvironmentConfig, RemoteExecutorConfig
    from execserver.watching import WatchOptions
else:
    from execserver.tuples import NamedTuple

_NAME = "execserver"
_REMOTE_LOG_LEVEL = "info"  # there is no URL to print; what happens is told in the log
_INSECURE = "--insecure-listen"
_OWN = ("--keep-max", "--spool-max", "--allow-forward", "--survive-crash")  # they go to `own_options`
_WATCHED_BY = ("--metrics", "--audit", "--audit-required", "--network-rules")
_PASS_TRACE = "--pass-trace"
_PRIVATE_VIA_UPSTREAM = "--proxy-private-ips-via-upstream"
_LIMITS = ("--limit-process", "--limit-session")
_UPGRADE_ON_HUP = "--upgrade-on-hup"
EXIT_ON_STDIN_CLOSE = "--exit-on-stdin-close"
EXIT_ON_STDIN_CLOSE_VARIABLE = "CODEX_EXEC_SERVER_EXIT_ON_STDIN_CLOSE"
_VARIABLES = {
    EXIT_ON_STDIN_CLOSE_VARIABLE: EXIT_ON_STDIN_CLOSE,
    "CODEX_EXEC_SERVER_PROXY_PRIVATE_IPS_VIA_UPSTREAM": _PRIVATE_VIA_UPSTREAM,
}
_REPEATABLE = frozenset({"--config", "--enable", "--disable", *_LIMITS})
_CHOICES = {
    "--log-level": ("off", "error", "warn", "info", "debug", "trace"),
    "--log-format": ("text", "json"),
    "--ws-auth": ("capability-token", "signed-bearer-token", "execserver-token", "oidc"),
    "--remote-transport": ("noise", "direct"),
}


class Options(NamedTuple):
    """The command line as values."""

    listen: str
    remote: str | None
    environment_id: str | None
    executor_id: str | None
    name: str | None
    use_agent_identity_auth: bool
    config: list[str]
    strict_config: bool
    log_level: str | None
    log_format: str
    exit_on_stdin_close: bool = False
    access: dict[str, str] = {}  # the options about who may connect, as they were given
    insecure_listen: bool = False
    stdin_credential: str | None = None
    chatgpt_account_id: str | None = None
    api_key_host: str | None = None
    concurrent_requests: int = 0  # 0: not asked for
    inherit_pid_namespace: bool = False
    pass_trace: bool = False
    private_ips_via_upstream: bool = False
    upgrade_on_hup: bool = False
    settings: dict[str, float] = {}  # those that options change
    watched_by: WatchOptions | None = None


def main(argv: list[str] | None = None, name: str = _NAME) -> int:
    """Serve as the arguments say (default: those of the process); return the exit status.

    `name` is what the program is called in texts about wrong usage.
    """
    ensure_stdio()
    return until_left(lambda: _main(sys.argv[1:] if argv is None else argv, name))


class Prepared(NamedTuple):
    """Options that fit each other, and what they come to; without `--remote` there is a `listen`."""

    options: Options
    listen: Listen
    entry: Entry | None
    settings: Settings


def _main(argv: list[str], name: str) -> int:
    options, listen, entry, settings = prepared(argv, name)
    end_at_once_on_signals()
    if options.remote is not None:
        return _serve_remote(options, options.remote, settings)
    announce = announcer(options.log_level, options.log_format)
    return _serve(listen, settings, ExecServerRuntimePaths.detect(), announce, entry, options.watched_by)


def prepared(argv: list[str], name: str = _NAME) -> Prepared:
    """Read arguments, and the files that they name; nothing is opened for serving.  Raises Leave."""
    options = parse(argv, name)
    try:
        listen, entry = listen_and_entry(options.listen, options.access, remote=options.remote is not None)
        settings = Settings.from_environment(
            os.environ,
            concurrent_requests=options.concurrent_requests,
            inherit_pid_namespace=int(options.inherit_pid_namespace),
            pass_trace=int(options.pass_trace),
            proxy_private_ips_via_upstream=int(options.private_ips_via_upstream),
            upgrade_on_hup=int(options.upgrade_on_hup),
            audit=int(options.watched_by is not None and options.watched_by.audit is not None),
            **options.settings,
        )
        if options.remote is None and not options.insecure_listen:
            check_secure(listen, entry, options.listen, warns_only=name != _NAME)
    except InsecureListenUrl as error:
        raise failure(str(error), error.cure) from None
    except (ExecServerListenUrlParseError, SettingError) as error:
        raise failure(str(error)) from None
    return Prepared(options, listen, entry, settings)


def check_resuming(argv: list[str], name: str = _NAME) -> None:
    """Load all that a server by these arguments is made of, and make none.

    Raises Leave for arguments that are mistaken, and for those of a server that is not upgraded in place.
    """
    options, listen, _, _ = prepared(argv, name)
    if options.remote is None and isinstance(listen, Stdio):
        raise failure("a server on stdio cannot be upgraded in place")
    if options.watched_by is not None and options.watched_by.network_rules is not None:
        from execserver.egress.rules_reading import rules_of_file

        rules_of_file(options.watched_by.network_rules)
    from execserver.app import load

    if options.remote is None:
        load()
        return
    from execserver.remote.errors import RemoteError

    try:
        load(remote_config(options, options.remote))
    except RemoteError as error:
        raise failure(error.report) from None


def run_main(runtime_paths: ExecServerRuntimePaths | None = None) -> int:
    """Serve on the default listen URL until a signal; return the exit status."""
    return run_main_with_listen_url(DEFAULT_LISTEN_URL, runtime_paths)


def run_main_with_listen_url(
    listen_url: str, runtime_paths: ExecServerRuntimePaths | None = None, *, insecure_listen: bool = False
) -> int:
    """Serve on a listen URL until a signal or, on stdio, the end of input; return the exit status.

    Raises ExecServerListenUrlParseError before anything is started; also for an address that others can
    reach, unless `insecure_listen` accepts that nobody is asked who they are.
    """
    listen = parse_listen_url(listen_url)
    if not insecure_listen:
        check_secure(listen, None, listen_url)
    settings = Settings.from_environment(os.environ)
    paths = runtime_paths or ExecServerRuntimePaths.detect()
    return _serve(listen, settings, paths, announcer(None, "text"))


def run_remote_environment(
    config: RemoteEnvironmentConfig, runtime_paths: ExecServerRuntimePaths | None = None
) -> int:
    """Serve as a remote environment until a signal; return the exit status.

    Raises RemoteError if it cannot start or go on; nothing is left running then.
    """
    return _run_remote(config, runtime_paths)


def run_remote_executor(
    config: RemoteExecutorConfig, runtime_paths: ExecServerRuntimePaths | None = None
) -> int:
    """Serve by the contract of May 2026 until a signal; return the exit status.  Raises RemoteError."""
    return _run_remote(config, runtime_paths)


def parse(argv: list[str], name: str = _NAME) -> Options:
    """Return the options, or raise Leave: for help and version, and for every mistake.

    Mistakes are found in the contract's order: spelling, conflicts, missing companions, configuration fields.
    """
    table = read_table(HELP, _REPEATABLE, _CHOICES)
    program = Program(name, table, lambda: HELP, f"execserver {__version__}\n")
    parsed = program.parse(argv)
    # Afterwards: whatever the environment holds, help and version come.
    if given := from_environment(program, argv):
        parsed = program.parse([*given, *argv])
    check_values(program, parsed.options)
    refuse_direct(parsed.words)
    if (mistake := wrong_value(parsed.words)) is not None:
        raise program.mistaken(mistake)
    values = options_of(parsed)
    if any(name in parsed.options for name in _OWN):
        from execserver.own_options import overrides

        values = values._replace(settings=overrides(program, parsed.options))
    if any(name in parsed.options for name in _LIMITS):
        from execserver.limit_options import limit_settings

        values = values._replace(settings=values.settings | limit_settings(program, parsed.words))
    if any(name in parsed.options for name in _WATCHED_BY):
        from execserver.own_options import watch_options

        values = values._replace(watched_by=watch_options(program, parsed.options))
    if values.strict_config:
        _check_config(values.config)
    return values


def from_environment(program: Program, argv: list[str]) -> list[str]:
    """Return the options that variables of the environment give, unless the command line has them.

    Raises Leave for a wrong value.
    """
    found = []
    for variable, option in _VARIABLES.items():
        given = os.environ.get(variable)
        if given is None or option in argv:
            continue
        if given not in ("true", "false"):
            shown = f"invalid value '{given}' for '{option}'\n  [possible values: true, false]"
            raise program.mistaken(Mistake(shown, None))
        found += [option] if given == "true" else []
    return found


def options_of(parsed: Parsed) -> Options:
    """Return what `parse` has found free of mistakes as values; tests compare it with docopt's reading."""
    given = parsed.options
    return Options(
        listen=given.get("--listen", DEFAULT_LISTEN_URL),
        remote=given.get("--remote"),
        environment_id=given.get("--environment-id"),
        executor_id=given.get("--executor-id"),
        name=given.get("--name"),
        use_agent_identity_auth="--use-agent-identity-auth" in given,
        config=[word.partition("=")[2] for word in parsed.words if word.startswith("--config=")],
        strict_config="--strict-config" in given,
        log_level=given.get("--log-level"),
        log_format=given.get("--log-format", "text"),
        exit_on_stdin_close=EXIT_ON_STDIN_CLOSE in given,
        insecure_listen=_INSECURE in given,
        pass_trace=_PASS_TRACE in given,
        private_ips_via_upstream=_PRIVATE_VIA_UPSTREAM in given,
        upgrade_on_hup=_UPGRADE_ON_HUP in given,
        access={name: given[name] for name in ACCESS_OPTIONS if name in given},
        stdin_credential=next((kind for kind in STDIN_CREDENTIALS if f"--{kind}-stdin" in given), None),
        chatgpt_account_id=given.get("--chatgpt-account-id"),
        api_key_host=given.get("--api-key-host"),
        concurrent_requests=int(given.get("--concurrent-requests", 0)),
        inherit_pid_namespace=given.get("--linux-sandbox-pid-namespace") == INHERIT,
    )


def _check_config(overrides: list[str]) -> None:
    from execserver.config_override import ConfigOverrideError, check_overrides

    try:
        check_overrides(overrides)
    except ConfigOverrideError as error:
        raise failure(str(error)) from None


def _serve(
    listen: Listen,
    settings: Settings,
    runtime_paths: ExecServerRuntimePaths,
    announce: Callable[[str | None], None],
    entry: Entry | None = None,
    watched_by: WatchOptions | None = None,
) -> int:
    """Run the app; an operating system error, such as an address in use, becomes the contract's text."""
    from execserver.app import serve

    try:
        return serve(listen, settings, runtime_paths, announce, entry, watched_by)
    except OSError as error:
        import logging

        from execserver.protocol.errors import os_error_text

        logging.getLogger("execserver").debug("the server failed", exc_info=True)
        write(2, f"Error: {os_error_text(error.errno) if error.errno else error}\n")
        return 1
    except KeyboardInterrupt:
        return 0


def _run_remote(
    config: RemoteEnvironmentConfig | RemoteExecutorConfig, runtime_paths: ExecServerRuntimePaths | None
) -> int:
    from execserver.app import serve_remote

    settings = Settings.from_environment(os.environ)
    paths = runtime_paths or ExecServerRuntimePaths.detect()
    return serve_remote(config, settings, paths, announcer(None, "text", _REMOTE_LOG_LEVEL))


def _serve_remote(options: Options, base_url: str, settings: Settings) -> int:
    from execserver.app import serve_remote

    config = remote_config(options, base_url)
    announce = announcer(options.log_level, options.log_format, _REMOTE_LOG_LEVEL)
    ends = options.exit_on_stdin_close
    paths = ExecServerRuntimePaths.detect
    watched_by = options.watched_by
    return _remotely(options, lambda: serve_remote(config, settings, paths(), announce, ends, watched_by))


def run_forward(options: Options, destination: str) -> int:
    """Register, and forward to another exec-server until a signal; return the exit status."""
    from execserver.app import forward
    from execserver.remote.config import RemoteEnvironmentConfig

    if options.strict_config:
        _check_config(options.config)
    end_at_once_on_signals()
    config = remote_config(options, options.remote or "")
    assert isinstance(config, RemoteEnvironmentConfig)
    announce = announcer(options.log_level, options.log_format, _REMOTE_LOG_LEVEL)
    ends = options.exit_on_stdin_close
    return _remotely(options, lambda: forward(config, destination, announce, ends))


def _remotely(options: Options, work: Callable[[], int]) -> int:
    """Do the work of remote mode; a fatal error becomes the contract's text."""
    from execserver.remote.errors import RemoteError

    try:
        return work()
    except RemoteError as error:
        _tell_failure(error.report, options.log_format)
        return 1
    except KeyboardInterrupt:
        return 0


def remote_config(options: Options, base_url: str) -> RemoteEnvironmentConfig | RemoteExecutorConfig:
    """Return how to register, as the options say."""
    from execserver.remote.config import DEFAULT_NAME, RemoteEnvironmentConfig, RemoteExecutorConfig

    name = DEFAULT_NAME if options.name is None else options.name
    if options.executor_id is not None:
        return RemoteExecutorConfig(base_url, options.executor_id, name)
    return RemoteEnvironmentConfig(
        *(base_url, options.environment_id or "", name, options.use_agent_identity_auth, options.config),
        stdin_credential=options.stdin_credential,
        chatgpt_account_id=options.chatgpt_account_id,
        api_key_host=options.api_key_host,
    )


def _tell_failure(report: str, log_format: str) -> None:
    """Print a fatal error; as a log line if the log is JSON, so that stderr stays a stream of objects."""
    import logging

    from execserver import log

    logger = logging.getLogger("execserver")
    if log_format == "json" and logger.isEnabledFor(logging.ERROR):
        logger.error("%s", report)
    else:
        write(2, f"Error: {log.active_redactor().without_known(report)}\n")

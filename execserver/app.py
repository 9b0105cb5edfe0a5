"""Starts a server: socket, zygote, listen URL, and only then everything that takes time to import.

The order is deliberate.  The zygote is executed before anything of the server exists that it could inherit.
The socket is bound and its URL announced before gevent, msgspec and the rest are imported; meanwhile the
kernel queues connections.  In remote mode the registry is asked before the server is imported.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]  # the plain calls, without enumerations
import _socket
import os

from execserver.leaving import failure
from execserver.listen_url import Listen, UnixListen, WsListen, listen_url
from execserver.listening import bind, bind_plain, bind_unix, with_methods
from execserver.runtime_paths import STATE_VARIABLE, ExecServerRuntimePaths
from execserver.settings import LIMIT_SETTINGS, Settings
from execserver.zygote.launch import start_zygote

TYPE_CHECKING = False
if TYPE_CHECKING:
    import socket
    from collections.abc import Callable

    from execserver.access.entry import Entry
    from execserver.audit.segments import Segments
    from execserver.egress.rules_file import NetworkRules
    from execserver.remote.config import RemoteEnvironmentConfig, RemoteExecutorConfig
    from execserver.resources.hierarchy import Hierarchy
    from execserver.server import Server
    from execserver.services.surviving.parts import Survival
    from execserver.survival.keeping import Keeping
    from execserver.unix_socket import BoundFile
    from execserver.upgrading.resuming import TakenOver
    from execserver.watching import WatchOptions

    Announce = Callable[[str | None], None]

# What remote mode loads while it waits for the registry, in portions that take some milliseconds each.
_AFTER_REGISTERING = (
    "execserver.handlers.context",
    "execserver.services.http.service",
    "execserver.services.confinement.sandbox",
    "execserver.transports.listener",
    "execserver.server",
    "execserver.remote.serving",
)


def serve(
    listen: Listen,
    settings: Settings,
    runtime_paths: ExecServerRuntimePaths,
    announce: Announce,
    entry: Entry | None = None,
    options: WatchOptions | None = None,
) -> int:
    """Serve until a signal or, on stdio, until the input ends; return the exit status.

    `entry` says who may connect to a listening socket; None asks nobody.  `options` are what an operator lays
    over the server, if anything.
    `announce` is called once the server can be reached: with its URL, or None on stdio.  Raises OSError if
    the server cannot listen on the address; nothing is left running then.
    """
    if STATE_VARIABLE in os.environ:
        return _go_on(settings, runtime_paths, announce, entry, options)
    keeping = _keeping() if settings.survive_crash else None
    if settings.survive_crash and keeping is None:
        return _keep(runtime_paths, settings)
    if keeping is not None and keeping.table:
        return _go_on(settings, runtime_paths, announce, entry, options, keeping)
    inherited = dict(os.environb)
    soft_nofile = open_files_limit()
    # Before the zygote: an address in use must leave nothing running.
    sock, file = _bind(listen, settings)
    try:
        watching, rules = _opened(options, settings), _rules(options)
        hierarchy = _control_groups(settings)
        command = zygote_command(runtime_paths, inherited)
        zygote = start_zygote(command, soft_nofile)
        _announce(announce, sock, settings, tls=isinstance(listen, WsListen) and listen.tls)

        from execserver.server import Server  # late: see above

        server = Server(
            *(settings, command, runtime_paths.doctor_command(), zygote, soft_nofile, inherited),
            *(hierarchy, rules, None if keeping is None else _survival(keeping)),
        )
        if watching is not None and options is not None:
            server.be_watched(*watching, is_required=options.is_required)
        if sock is None:
            return server.run_stdio()
        return server.run_websocket(with_methods(sock), entry, file)
    finally:
        if file is not None:
            file.remove()


def _announce(announce: Announce, sock: _socket.socket | None, settings: Settings, *, tls: bool) -> None:
    if tls or settings.upgrade_on_hup:
        # No end but a reload, which is done once the rest is loaded.
        _signal.pthread_sigmask(_signal.SIG_BLOCK, (_signal.SIGHUP,))
    announce(None if sock is None else _url_of(sock, tls=tls))


def _go_on(
    settings: Settings,
    runtime_paths: ExecServerRuntimePaths,
    announce: Announce,
    entry: Entry | None,
    options: WatchOptions | None,
    keeping: Keeping | None = None,
) -> int:
    """Serve in the place of the program that has executed this one, with all that it was doing.

    With `keeping` that of one that was killed.
    """
    taken_over = _taken_over(announce) if keeping is None else _after_crash(announce, settings, keeping)
    file = taken_over.file
    try:
        sock = taken_over.listening_socket()
        server = _succeeding(taken_over, settings, runtime_paths, options, keeping)
        return server.run_websocket(sock, entry, file, taken_over)
    finally:
        if file is not None:
            file.remove()


def _taken_over(announce: Announce) -> TakenOver:
    """Return what has come along with the exec.  Raises Leave for a state that is none."""
    import gc  # a part of the interpreter

    from execserver.handover.carrier import HandoverError, received
    from execserver.zygote.libc import Libc

    gc.disable()  # until clients are served: all that comes along is kept, and there is much of it
    Libc().set_undumpable()  # an exec has undone it, and the state is in this process from now on
    try:
        incoming = received(os.environ)
    except HandoverError as error:
        raise failure(f"this server cannot go on: {error}") from None
    assert incoming is not None  # the variable is there
    announce(None)

    from execserver.upgrading.resuming import TakenOver

    return TakenOver(incoming, incoming.state())


def _succeeding(
    taken_over: TakenOver,
    settings: Settings,
    runtime_paths: ExecServerRuntimePaths,
    options: WatchOptions | None,
    keeping: Keeping | None = None,
) -> Server:
    """Return the server that is to go on."""
    from execserver.server import Server

    inherited = dict(os.environb)
    command, doctor = zygote_command(runtime_paths, inherited), runtime_paths.doctor_command()
    hierarchy, rules = _control_groups(settings), _rules(options)
    soft_nofile = taken_over.incoming.soft_nofile
    # The zygote comes later: clients wait, and 10 ms for its exec would be a tenth of the pause.
    server = Server(
        *(settings, command, doctor, None, soft_nofile, inherited, hierarchy, rules),
        None if keeping is None else _survival(keeping),
    )
    watching = _opened(options, settings, taken_over.metrics_socket())
    if watching is not None and options is not None:
        since = "upgraded" if keeping is None else "afterCrash"
        server.be_watched(*watching, is_required=options.is_required, since=since)
    return server


def _after_crash(announce: Announce, settings: Settings, keeping: Keeping) -> TakenOver:
    """Return what a server that was killed has left.  Raises Leave for what cannot be read."""
    import gc  # a part of the interpreter

    from execserver.handover.carrier import HandoverError
    from execserver.survival.recovery import Recovered

    gc.disable()  # as behind an upgrade
    try:
        incoming = Recovered(keeping, settings)
    except HandoverError as error:
        raise failure(f"this server cannot go on: {error}") from None
    announce(None)

    from execserver.upgrading.after_crash import AfterCrash

    return AfterCrash(incoming, incoming.state(), keeping.cause)


def _keeping() -> Keeping | None:
    """Return the line to the keeper of this server; None if this process is to be that."""
    from execserver.survival.keeping import keeping_of
    from execserver.survival.messages import BadMessage
    from execserver.zygote.libc import Libc

    Libc().set_undumpable()  # from now on there is in this process what commands must not see
    try:
        return keeping_of(os.environ)
    except (BadMessage, ValueError) as error:
        raise failure(f"this server cannot go on: {error}") from None


def _keep(runtime_paths: ExecServerRuntimePaths, settings: Settings) -> int:
    """Be the keeper of a server with the arguments of this process; return its exit status.

    Raises Leave where nothing can be kept.
    """
    from execserver.own_start import own_start
    from execserver.survival.keeper import keep
    from execserver.survival.probing import objection

    if (why := objection()) is not None:
        raise failure(f"--survive-crash: {why}")

    command = runtime_paths.server_command(own_start().arguments)
    return keep(command, os.environ, settings.crash_restarts, settings.crash_window_s)


def _survival(keeping: Keeping) -> Survival:
    from execserver.services.surviving.parts import Survival

    return Survival(keeping)


def load(config: RemoteEnvironmentConfig | RemoteExecutorConfig | None = None) -> None:
    """Load what serves a listening socket, or an environment, and what goes on in another program's place.

    Raises RemoteError for a configuration that such an environment would not go on with.
    """
    import execserver.server
    import execserver.transports.listener
    import execserver.upgrading.resuming
    from execserver.handlers import load_handlers

    load_handlers()
    if config is not None:
        import execserver.remote.auth.handed_over
        import execserver.remote.serving  # noqa: F401
        from execserver.remote.beginning import check_resuming

        check_resuming(config)


def _rules(options: WatchOptions | None) -> NetworkRules | None:
    """Return the rules for the network, if there are any.  Raises Leave for a file that cannot serve."""
    if options is None or options.network_rules is None:
        return None
    from execserver.egress.rules_reading import rules_of_file  # late: few servers have rules

    return rules_of_file(options.network_rules)


def _opened(
    options: WatchOptions | None, settings: Settings, sock: socket.socket | None = None
) -> tuple[socket.socket | None, Segments | None] | None:
    """Open what the server is watched by, but for a socket that is given.

    Raises OSError, and Leave for a folder that cannot be it.
    """
    if options is None or not options.watch:
        return None
    segments = None
    if options.audit is not None:
        from execserver.audit.segments import AuditFolderError, Segments  # late: few servers are watched

        try:
            segments = Segments(os.path.abspath(options.audit))
        except AuditFolderError as error:
            raise failure(str(error)) from None
    if sock is None and options.metrics is not None:
        sock = bind(options.metrics, settings)
    return sock, segments


def _control_groups(settings: Settings) -> Hierarchy | None:
    """Make the control groups that limits of the command line need.

    Before the zygote, which so begins where it belongs.  Raises Leave for a limit that nothing holds here.
    """
    if not any(getattr(settings, name) for name in LIMIT_SETTINGS):
        return None
    from execserver.resources.hierarchy import Blocked  # late: few servers limit anything
    from execserver.services.resources.limit_table import groups_of_command_line

    try:
        return groups_of_command_line(settings)
    except Blocked as blocked:
        raise failure(str(blocked), blocked.cure) from None


def _bind(listen: Listen, settings: Settings) -> tuple[_socket.socket | None, BoundFile | None]:
    """Return the listening socket, None on stdio, and its file if it has one."""
    if isinstance(listen, UnixListen):
        return bind_unix(listen, settings)
    return (bind_plain(listen, settings), None) if isinstance(listen, WsListen) else (None, None)


def serve_remote(
    config: RemoteEnvironmentConfig | RemoteExecutorConfig,
    settings: Settings,
    runtime_paths: ExecServerRuntimePaths,
    announce: Announce,
    ends_with_stdin: bool = False,
    options: WatchOptions | None = None,
) -> int:
    """Serve as a remote environment until a signal, or the end of stdin if that counts; return the status.

    `announce` is called with None before anything is done that should be logged: it configures the log.
    Raises RemoteError if the server cannot go on, OSError if what it is watched by cannot be opened; nothing
    is left running then.
    """
    if STATE_VARIABLE in os.environ:
        return _go_on_remotely(config, settings, runtime_paths, announce, ends_with_stdin, options)
    inherited = dict(os.environb)
    soft_nofile = open_files_limit()
    watching, rules = _opened(options, settings), _rules(options)
    hierarchy = _control_groups(settings)
    command = zygote_command(runtime_paths, inherited)
    zygote = start_zygote(command, soft_nofile)
    announce(None)

    from execserver.remote.beginning import begin, load

    beginning = begin(config, ends_with_stdin)
    load(_AFTER_REGISTERING)
    from execserver.server import Server

    doctor = runtime_paths.doctor_command()
    server = Server(settings, command, doctor, zygote, soft_nofile, inherited, hierarchy, rules)
    if watching is not None and options is not None:
        server.be_watched(*watching, is_required=options.is_required)
    return server.run_remote(beginning)


def _go_on_remotely(
    config: RemoteEnvironmentConfig | RemoteExecutorConfig,
    settings: Settings,
    runtime_paths: ExecServerRuntimePaths,
    announce: Announce,
    ends_with_stdin: bool,
    options: WatchOptions | None,
) -> int:
    """Serve an environment in the place of the program that has executed this one."""
    taken_over = _taken_over(announce)

    from execserver.remote.beginning import begin

    server = _succeeding(taken_over, settings, runtime_paths, options)
    beginning = begin(config, ends_with_stdin, taken_over.remote, taken_over.incoming.beside)
    return server.run_remote(beginning, taken_over)


def forward(
    config: RemoteEnvironmentConfig, destination: str, announce: Announce, ends_with_stdin: bool = False
) -> int:
    """Be a remote environment whose work is done by the exec-server at `destination`; return the status.

    Nothing is started here.  Raises RemoteError if that cannot go on.
    """
    from execserver.zygote.libc import Libc

    Libc().set_undumpable()  # commands of a destination on this machine must not read the credentials
    announce(None)

    from execserver.remote import addresses
    from execserver.remote.forward import forward as run

    return run(config, addresses.checked_destination(destination), ends_with_stdin)


def zygote_command(runtime_paths: ExecServerRuntimePaths, inherited: dict[bytes, bytes]) -> list[bytes]:
    """Return the command that starts a zygote."""
    return [*runtime_paths.zygote_command(), *filter(None, [inherited.get(b"XDG_RUNTIME_DIR")])]


def open_files_limit() -> int:
    """Return the soft limit of open files; commands keep it, while the server raises its own."""
    import resource  # late: an extension module that only a server needs

    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]


def _url_of(sock: _socket.socket, *, tls: bool) -> str:
    if sock.family == _socket.AF_UNIX:
        return f"unix://{sock.getsockname()}"
    host, port, *rest = sock.getsockname()
    return listen_url(host, port, rest[1] if rest else 0, tls=tls)

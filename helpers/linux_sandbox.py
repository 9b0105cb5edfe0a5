"""Entry point of `codex-linux-sandbox`: one command in a sandbox, for anyone, with or without a server.

What is asked for is enforced, or nothing runs.  The environment is the command's: before the command itself
is executed, no library is loaded from it and no program looked up in it.  The exception is a bubblewrap that
only root can replace, where this user may make no sandbox root.

The table of back ends serves only where no view can be made (`zygote/confine/fallback`): to import them all
takes 8 ms for each command, besides 6 to 12, and this process becomes what Landlock or a filter confines.

Exit status: that of the command, 128+N when signal N ended it; 1 when the sandbox cannot be made, 2 for wrong
usage, 101 for what makes the contract's program panic, such as a command that cannot be run.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]
import os
import sys

from execserver.leaving import until_left

from .linux_sandbox_arguments import HELP, HelpWanted, Mistake, invalid_profile, parse

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from execserver.protocol.permissions import PermissionProfile
    from execserver.sandbox.plan import Mount, SandboxPlan

    from .linux_sandbox_arguments import Options
    from .linux_sandbox_network import Way

_NAME = "codex-linux-sandbox"
_REFUSED = "error building bubblewrap command: Fatal error: "
_EXIT_NOT_PREPARED = 1
_EXIT_USAGE = 2
_EXIT_FATAL = 101
_SIGKILL = 9
_NOT_FOR_LANDLOCK = (
    "permission profiles requiring direct runtime enforcement are incompatible with --use-legacy-landlock"
)
_OTHER_NETWORK = (
    "--network-rules is incompatible with --allow-network-for-proxy, --use-legacy-landlock and "
    "--apply-seccomp-then-exec"
)


class _Fatal(Exception):
    """Nothing can run; the message says why, the exit status is 101."""


def main() -> int:
    """Run what the arguments say; return the exit status."""
    try:
        options = parse(sys.argv[1:])
        profile = _profile(options)
    except HelpWanted:
        _write(1, HELP)
        return 0
    except Mistake as mistake:
        _write(2, str(mistake))
        return _EXIT_USAGE
    try:
        return until_left(lambda: _run(options, profile))
    except _Fatal as fatal:
        _write(2, f"{_NAME}: {fatal}\n")
        return _EXIT_FATAL


def _profile(options: Options) -> PermissionProfile | None:
    """Return the permission profile of a command line, or None without one.  Raises Mistake."""
    if options.profile_text is None:
        return None
    from execserver.protocol.errors import InvalidParams
    from execserver.protocol.json_text import NotJson
    from execserver.protocol.json_text import parse as parse_json
    from execserver.protocol.permissions import NO_SUCH_PROFILE, PermissionProfile

    try:
        return PermissionProfile.from_json(parse_json(os.fsencode(options.profile_text)))
    except NotJson as error:
        raise invalid_profile(options.profile_text, str(error)) from None
    except InvalidParams:
        raise invalid_profile(options.profile_text, NO_SUCH_PROFILE) from None


def _run(options: Options, profile: PermissionProfile | None) -> int:
    if not options.command:
        raise _Fatal("No command specified to execute.")
    if profile is None:
        raise _Fatal("missing permission profile configuration")
    if options.inner and options.use_landlock:
        raise _Fatal("--apply-seccomp-then-exec is incompatible with --use-legacy-landlock")
    if options.network_rules is not None:
        if options.inner or options.use_landlock or options.proxy:
            raise _Fatal(_OTHER_NETWORK)
        options.proxy = True
    env = [name + b"=" + value for name, value in os.environb.items()]
    if options.inner:
        return _inner_stage(options, profile, env)
    from execserver.sandbox.plan import NETWORK_PROXY, ROOT_HOST, PlanRefused

    try:
        plan = _plan(options, profile)
    except PlanRefused as refused:
        _write(2, f"{_REFUSED}{refused}\n")
        return _EXIT_NOT_PREPARED
    # Files are not restricted, so the filter alone will do.  A proxy needs a network namespace in any case.
    if plan.root == ROOT_HOST and plan.network != NETWORK_PROXY:
        return _become(options, env, plan.syscall_filter)
    if options.use_landlock or options.shares_processes:
        return _under_landlock(options, env, plan)
    return _in_root(options, env, plan)


def _plan(options: Options, profile: PermissionProfile) -> SandboxPlan:
    """Return the sandbox plan.  Raises PlanRefused, or _Fatal for a context that makes no sense here."""
    from execserver.protocol.errors import RpcError, os_error_text
    from execserver.protocol.paths import PathUri
    from execserver.protocol.sandbox import FileSystemSandboxContext
    from execserver.sandbox.masks.host import KnownMaskTargets, MaskTargetHost
    from execserver.sandbox.nesting import with_nesting
    from execserver.sandbox.own_files import keep_own_files
    from execserver.sandbox.policy.planner import plan_for_process
    from execserver.sandbox.policy.policy import process_policy
    from execserver.sandbox.policy.request_check import process_request_needs_sandbox

    here = os.getcwdb()
    policy_cwd = os.path.normpath(os.path.join(here, os.fsencode(options.policy_cwd)))
    context = FileSystemSandboxContext(profile, PathUri.from_native(policy_cwd))
    targets = KnownMaskTargets(os.environb.get(b"XDG_RUNTIME_DIR"))
    host = MaskTargetHost(targets, os.environb.get(b"TMPDIR"))
    try:
        process_request_needs_sandbox(context, options.proxy)
        policy = process_policy(context, host, here)
        plan = plan_for_process(policy, host, None, options.proxy and not options.use_landlock)
        return with_nesting(keep_own_files(plan, host, os.environb), os.environb)
    except RpcError as error:
        raise _Fatal(error.message) from None
    except OSError as error:
        raise _Fatal(os_error_text(error.errno or 0)) from None


def _in_root(options: Options, env: Sequence[bytes], plan: SandboxPlan) -> int:
    from execserver.sandbox.plan import NETWORK_PROXY

    from .linux_sandbox_cleanup import run_monitored

    make_way = _way_maker(options, env) if plan.network == NETWORK_PROXY else None

    def run(covers: Sequence[Mount]) -> int:
        return _run_in_root(options, env, plan, covers, make_way)

    return run_monitored(plan, os.environb.get(b"XDG_RUNTIME_DIR"), run, _not_prepared)


def _way_maker(options: Options, env: Sequence[bytes]) -> Callable[[], Way]:
    """Return what makes the way to proxies for one attempt.  Raises _Fatal, and Leave for bad rules."""
    from execserver.sandbox.kernel.syscalls import Kernel
    from execserver.sandbox.proxy.routes import FAILURE, RouteError, find_routes

    from .linux_sandbox_network import to_our_own, to_the_hosts

    if options.network_rules is not None:
        from execserver.egress.rules_reading import checked_text

        rules = checked_text(options.network_rules)
        return lambda: to_our_own(env, rules)
    try:
        routes = find_routes(env)
    except RouteError as error:
        raise _Fatal(f"{FAILURE}{error}") from None
    return lambda: to_the_hosts(Kernel(), env, routes)


def _run_in_root(
    options: Options,
    env: Sequence[bytes],
    plan: SandboxPlan,
    covers: Sequence[Mount],
    make_way: Callable[[], Way] | None,
) -> int:
    """Run the command to its end; return its exit status.  Raises RootFailed."""
    from execserver.sandbox.kernel.syscalls import Kernel
    from execserver.sandbox.rootfs.builder import RootFailed
    from execserver.zygote.confine.child import tying_to_parent
    from execserver.zygote.confine.standalone import run_confined

    from .linux_sandbox_cleanup import PARENT_DIED
    from .linux_sandbox_stdio import shield

    # An open file keeps the mount it was opened on, so a file as stdin would lead out of the sandbox root.
    try:
        reader = shield(tying_to_parent(Kernel()))
    except OSError as error:
        raise RootFailed(f"cannot take over stdio: {error.strerror}") from None
    argv, cwd = [os.fsencode(word) for word in options.command], _workdir(options)
    way = None if make_way is None else make_way()
    try:
        before, led = (None, env) if way is None else (way.routing.open, way.routing.env)
        status = run_confined(plan, argv, led, cwd, extra=covers, before=before, end_signal=PARENT_DIED)
    except RootFailed as failed:
        # Only now is anything else probed: a user who may make namespaces does not pay for it.
        from execserver.zygote.confine.command import Command
        from execserver.zygote.confine.fallback import run_otherwise

        if way is not None and make_way is not None:
            way.end()
            way = make_way()
        path, routing = os.environb.get(b"PATH", b""), None if way is None else way.routing
        status = run_otherwise(plan, Command(argv, env, cwd), covers, failed, path, PARENT_DIED, routing)
    finally:
        # Both are children of this process and have nothing to serve any more.
        if way is not None:
            way.end()
        if reader:
            os.kill(reader, _SIGKILL)
            os.waitpid(reader, 0)
    code = os.waitstatus_to_exitcode(status)
    return code if code >= 0 else 128 - code  # a negative one is minus the signal


def _workdir(options: Options) -> bytes:
    """Return the folder to run in: the current one, unless the caller names one through a symlink."""
    named = os.path.abspath(os.fsencode(options.command_cwd or options.policy_cwd))
    return os.getcwdb() if os.path.realpath(named) == named else named


def _under_landlock(options: Options, env: Sequence[bytes], plan: SandboxPlan) -> int:
    from execserver.sandbox.backends import landlock_only
    from execserver.sandbox.kernel.landlock import abi
    from execserver.sandbox.kernel.syscalls import Kernel

    kernel = Kernel()
    if options.shares_processes:
        from execserver.sandbox.backends.selection import why_not_shared

        # What a command leaves behind would outlive its masks, so nothing else serves.
        if reason := why_not_shared(plan, abi(kernel)):
            return _not_prepared(reason)
    if landlock_only.inexact(plan):
        raise _Fatal(_NOT_FOR_LANDLOCK)
    if abi(kernel) < landlock_only.LEAST_ABI:
        raise _Fatal("Landlock is not available on this machine, or too old")
    try:
        landlock_only.confine_self(kernel, plan)
    except OSError as error:
        return _not_prepared(f"Landlock cannot be applied: {error.strerror}")
    return _execute(options, env)


def _inner_stage(options: Options, profile: PermissionProfile, env: Sequence[bytes]) -> int:
    from execserver.sandbox.plan import FILTER_NONE, FILTER_OPEN, FILTER_PROXY_ROUTED, FILTER_RESTRICTED

    if not options.proxy:
        unfiltered = FILTER_NONE if profile.entries is None else FILTER_OPEN
        chosen = unfiltered if profile.network_enabled else FILTER_RESTRICTED
        return _become(options, env, chosen, always=True)
    from execserver.sandbox.kernel.syscalls import Kernel
    from execserver.zygote.confine.child import tying_to_parent

    from .linux_sandbox_routes import RouteSpecError, activate

    if options.route_spec is None:
        raise _Fatal("managed proxy mode requires --proxy-route-spec")
    try:
        env = activate(options.route_spec, env, tying_to_parent(Kernel()))
    except RouteSpecError as error:
        raise _Fatal(f"error activating Linux proxy routing bridge: {error}") from None
    return _become(options, env, FILTER_PROXY_ROUTED, True)


def _become(options: Options, env: Sequence[bytes], syscall_filter: str, always: bool = False) -> int:
    """Become the command, under the filter.

    With `always`, or a filter, it cannot gain privileges either.
    """
    from execserver.sandbox.kernel import privileges, seccomp
    from execserver.sandbox.kernel.syscalls import Kernel
    from execserver.sandbox.plan import FILTER_NONE

    if always or syscall_filter != FILTER_NONE:
        kernel = Kernel()
        try:
            privileges.no_new_privileges(kernel)
            if syscall_filter != FILTER_NONE:
                seccomp.install(kernel, syscall_filter)
        except OSError as error:
            return _not_prepared(f"the filter of system calls cannot be applied: {error.strerror}")
    return _execute(options, env)


def _execute(options: Options, env: Sequence[bytes]) -> int:
    """Replace this process by the command; return the status when that fails."""
    from execserver.sandbox.kernel.limits import leave_descriptors_to_others
    from execserver.sandbox.kernel.privileges import close_from
    from execserver.sandbox.kernel.syscalls import Kernel
    from execserver.zygote.confine.command import Command, start_program
    from execserver.zygote.libc import Libc

    for number in (_signal.SIGPIPE, _signal.SIGXFSZ):  # the interpreter ignores them, and an exec keeps that
        _signal.signal(number, _signal.SIG_DFL)
    argv = [os.fsencode(word) for word in options.command]
    execute = Libc().execute
    # The caller may have left more descriptors open than the command may have.
    leave_descriptors_to_others()
    close_from(Kernel(), 3)
    return -start_program(Command(argv, env, os.getcwdb()), env, execute)


def _not_prepared(reason: str) -> int:
    _write(2, f"{_NAME}: {reason}\n")
    return _EXIT_NOT_PREPARED


def _write(descriptor: int, text: str) -> None:
    try:
        os.write(descriptor, text.encode("utf-8", "surrogateescape"))
    except OSError:
        pass  # nobody reads it

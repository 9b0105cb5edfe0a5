"""The environment of a program that runs outside the sandbox.

It is the command's, without the variables of the interception.  Variables that make the dynamic loader and
the C library load or write files come from the server's environment instead: otherwise any program that may
run outside would run the sandbox's code there.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

_PRIVATE = frozenset((b"CODEX_ESCALATE_SOCKET", b"BASH_EXEC_WRAPPER", b"EXEC_WRAPPER"))
# What the C libraries ignore in set-user-id programs; without TMPDIR, which only names a folder.
_LOADERS = frozenset(
    (
        *(b"LD_AUDIT", b"LD_BIND_NOT", b"LD_DEBUG", b"LD_DEBUG_OUTPUT", b"LD_DYNAMIC_WEAK"),
        *(b"LD_HWCAP_MASK", b"LD_LIBRARY_PATH", b"LD_ORIGIN_PATH", b"LD_PREFER_MAP_32BIT_EXEC"),
        *(b"LD_PRELOAD", b"LD_PROFILE", b"LD_PROFILE_OUTPUT", b"LD_SHOW_AUXV", b"LD_USE_LOAD_BIAS"),
        *(b"LD_TRACE_LOADED_OBJECTS", b"LD_VERBOSE", b"LD_WARN", b"LD_BIND_NOW"),
        *(b"GCONV_PATH", b"GETCONF_DIR", b"GLIBC_TUNABLES", b"HOSTALIASES", b"LOCALDOMAIN", b"LOCPATH"),
        *(b"MALLOC_CHECK_", b"MALLOC_PERTURB_", b"MALLOC_TRACE", b"NIS_PATH", b"NLSPATH"),
        *(b"RESOLV_HOST_CONF", b"RES_OPTIONS", b"TZDIR", b"MUSL_LOCPATH"),
        b"EXECSERVER_CACHE_DIR",  # the single-file program, which may be allowed, runs what is in there
    )
)
# What may name a file to the C library, but mostly does not.  In set-user-id programs it ignores such values.
_LANGUAGES, _ZONE = b"LANGUAGE", b"TZ"
_ZONES = (b"/usr/share/zoneinfo/", b"/etc/localtime")


class OutsideEnvironment:
    """Makes environments; `server_env` are the server's own `name=value` entries.

    Variables with the names in `inner` mean something inside the sandbox only: the server's come instead.
    """

    def __init__(self, server_env: Sequence[bytes], inner: frozenset[bytes] = frozenset()) -> None:
        self._left_out = _PRIVATE | _LOADERS | inner
        replaced = _LOADERS | inner
        self._own = [entry for entry in server_env if entry.partition(b"=")[0] in replaced]
        self._last: tuple[Sequence[bytes], list[bytes]] = (), list(self._own)

    def of(self, command: Sequence[bytes]) -> list[bytes]:
        """Return the environment outside for a command's environment inside, in its order.

        The same environment gives the same list object again, which nobody may change.
        """
        # Most programs of a shell have the same environment; `Outside` knows it by the identity of the list.
        if self._last[0] != command:
            kept = [entry for entry in command if self._is_kept(entry)]
            self._last = command, kept + self._own
        return self._last[1]

    def _is_kept(self, entry: bytes) -> bool:
        name, _, value = entry.partition(b"=")
        if name in self._left_out:
            return False
        if name == _LANGUAGES:
            # Message catalogues hold format strings.  A path would make the program use those of the command.
            return b"/" not in value
        return name != _ZONE or _is_zone_of_the_system(value)


def _is_zone_of_the_system(value: bytes) -> bool:
    """Return whether a TZ can only lead to the system's own time zone files, by the C libraries' own rule."""
    path = value.removeprefix(b":")
    return b"../" not in path and (not path.startswith(b"/") or path.startswith(_ZONES))


def with_variables(env: Sequence[bytes], entries: Sequence[bytes]) -> list[bytes]:
    """Return an environment in which `entries`, each `name=value`, replace others of the same names."""
    names = {entry.partition(b"=")[0] for entry in entries}
    return [entry for entry in env if entry.partition(b"=")[0] not in names] + list(entries)

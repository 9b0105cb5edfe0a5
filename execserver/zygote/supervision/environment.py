"""The environment of a program that runs outside.

It is the command's, without what belongs to the interception, and with the variables that make the dynamic
loader and the C library load or write files taken from the server's environment: otherwise any program that
may run outside would run the sandbox's code there.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

_PRIVATE = frozenset((b"CODEX_ESCALATE_SOCKET", b"BASH_EXEC_WRAPPER", b"EXEC_WRAPPER"))
# What the C libraries do not take from strangers, in set-user-id programs; but TMPDIR, which is only a place.
_LOADERS = frozenset(
    (
        *(b"LD_AUDIT", b"LD_BIND_NOT", b"LD_DEBUG", b"LD_DEBUG_OUTPUT", b"LD_DYNAMIC_WEAK"),
        *(b"LD_HWCAP_MASK", b"LD_LIBRARY_PATH", b"LD_ORIGIN_PATH", b"LD_PREFER_MAP_32BIT_EXEC"),
        *(b"LD_PRELOAD", b"LD_PROFILE", b"LD_PROFILE_OUTPUT", b"LD_SHOW_AUXV", b"LD_USE_LOAD_BIAS"),
        *(b"LD_TRACE_LOADED_OBJECTS", b"LD_VERBOSE", b"LD_WARN", b"LD_BIND_NOW"),
        *(b"GCONV_PATH", b"GETCONF_DIR", b"GLIBC_TUNABLES", b"HOSTALIASES", b"LOCALDOMAIN", b"LOCPATH"),
        *(b"MALLOC_CHECK_", b"MALLOC_PERTURB_", b"MALLOC_TRACE", b"NIS_PATH", b"NLSPATH"),
        *(b"RESOLV_HOST_CONF", b"RES_OPTIONS", b"TZDIR", b"MUSL_LOCPATH"),
        b"EXECSERVER_CACHE_DIR",  # from where our own file, which may be allowed, takes what it runs
    )
)
# What may name a file to the C library, and mostly does not; from strangers it takes no such value, either.
_LANGUAGES, _ZONE = b"LANGUAGE", b"TZ"
_ZONES = (b"/usr/share/zoneinfo/", b"/etc/localtime")


class OutsideEnvironment:
    """Makes environments; `server_env` are the server's own `name=value` entries."""

    def __init__(self, server_env: Sequence[bytes]) -> None:
        self._left_out = _PRIVATE | _LOADERS
        self._own = [entry for entry in server_env if entry.partition(b"=")[0] in _LOADERS]
        self._last: tuple[Sequence[bytes], list[bytes]] = (), list(self._own)

    def of(self, command: Sequence[bytes]) -> list[bytes]:
        """Return the environment outside for a command's environment inside, in its order.

        It is the same list again for the same environment, as a shell's programs have it: nobody changes it.
        """
        if self._last[0] != command:
            kept = [entry for entry in command if self._is_kept(entry)]
            self._last = command, kept + self._own
        return self._last[1]

    def _is_kept(self, entry: bytes) -> bool:
        name, _, value = entry.partition(b"=")
        if name in self._left_out:
            return False
        if name == _LANGUAGES:
            # Catalogues hold format strings: with `../` the program would use the command's.
            return b"/" not in value
        return name != _ZONE or _is_zone_of_the_system(value)


def _is_zone_of_the_system(value: bytes) -> bool:
    """Tell whether a TZ leads to no other file than those of the system, as C libraries ask."""
    path = value.removeprefix(b":")
    return b"../" not in path and (not path.startswith(b"/") or path.startswith(_ZONES))


def with_variables(env: Sequence[bytes], entries: Sequence[bytes]) -> list[bytes]:
    """Return an environment in which some `name=value` entries stand in place of others of their names."""
    names = {entry.partition(b"=")[0] for entry in entries}
    return [entry for entry in env if entry.partition(b"=")[0] not in names] + list(entries)

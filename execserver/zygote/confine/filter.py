"""A seccomp filter alone, where files are not restricted; and no filter, where nothing is."""

from __future__ import annotations

from execserver.sandbox.kernel import privileges, seccomp
from execserver.sandbox.plan import FILTER_OPEN, FILTER_PROXY_ROUTED, FILTER_RESTRICTED
from execserver.zygote.confine.back_end import refused
from execserver.zygote.confine.unnamespaced import Unnamespaced

TYPE_CHECKING = False
if TYPE_CHECKING:
    from execserver.zygote.confine.back_end import Host
    from execserver.zygote.confinement import Confinement

_FILTERS = (FILTER_RESTRICTED, FILTER_PROXY_ROUTED, FILTER_OPEN)


class Filter(Unnamespaced):
    """Commands under one filter."""

    def __init__(self, host: Host, confinement: Confinement) -> None:
        super().__init__(host, confinement)
        self._filter = confinement.detail.decode("utf-8", "replace")
        if self._filter not in _FILTERS:
            raise refused("there is no such filter")

    def restrict(self) -> None:
        """Put this process under the filter."""
        # Without capabilities the kernel demands it of whoever installs a filter.
        privileges.no_new_privileges(self._host.kernel)
        seccomp.install(self._host.kernel, self._filter)


class Unrestricted(Unnamespaced):
    """Commands that are only watched."""

    def restrict(self) -> None:
        """Take nothing away."""

"""Which back end carries out which kind of confinement."""

from __future__ import annotations

from execserver.zygote.confine.bubblewrap import Bubblewrap
from execserver.zygote.confine.filter import Filter, Unrestricted
from execserver.zygote.confine.landlock import Landlock
from execserver.zygote.confine.native import Native
from execserver.zygote.confine.refusal import Refusal
from execserver.zygote.confinement import BUBBLEWRAP, FILTER, LANDLOCK, NATIVE, NOTHING, REFUSAL

TYPE_CHECKING = False
if TYPE_CHECKING:
    from execserver.zygote.confine.back_end import BackEnd, Host
    from execserver.zygote.confinement import Confinement

_BACK_ENDS: dict[str, type[BackEnd]] = {
    NATIVE: Native,
    BUBBLEWRAP: Bubblewrap,
    LANDLOCK: Landlock,
    FILTER: Filter,
    NOTHING: Unrestricted,
    REFUSAL: Refusal,
}


def back_end_of(host: Host, confinement: Confinement) -> BackEnd:
    """Return the back end of a confinement, which it has decoded.  Raises SpawnFailure."""
    return _BACK_ENDS[confinement.kind](host, confinement)

"""The way from the package to the folder `helpers/` of a checkout.

A wheel, the one file and the zipapp hold the modules of that folder here, in the place of this file, so that
an installed execserver brings one top-level package only.  In a checkout they lie beside the package, and are
the same modules under the same names: `execserver._helpers.codex_fs`.
"""

from __future__ import annotations

# By the path of this package, not by a search for `helpers`: another distribution may have one of that name.
__path__ = [__file__.rpartition("/execserver/_helpers/")[0] + "/helpers"]

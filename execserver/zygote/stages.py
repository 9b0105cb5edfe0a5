"""Where a start failed, as numbers that records carry."""

from __future__ import annotations

STAGE_CWD = 1
STAGE_LOOKUP = 2
STAGE_EXEC = 3
STAGE_ROOT = 4  # the sandbox could not be made; the only detail says why
STAGES = (STAGE_CWD, STAGE_LOOKUP, STAGE_EXEC, STAGE_ROOT)

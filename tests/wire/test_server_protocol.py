"""The library's side of a connection: which frames need it, and which do not."""

from __future__ import annotations

import subprocess
import sys

from websockets.frames import Frame, Opcode


def test_the_library_is_loaded_with_the_first_frame_that_it_has_to_judge() -> None:
    whole, close = (
        Frame(Opcode.TEXT, b"{}").serialize(mask=True),
        Frame(Opcode.CLOSE, b"\x03\xe8bye").serialize(mask=True),
    )
    fragment = Frame(Opcode.TEXT, b"{", fin=False).serialize(mask=True)
    script = f"""
import sys
from execserver.wire.websocket import FrameLimits, ServerFrames
limits = FrameLimits(1000, 1000, 10)
loaded = lambda: "websockets.protocol" in sys.modules
frames = ServerFrames(limits)
print(frames.feed({whole!r} + {close!r}), frames.control, frames.peer_closed, loaded())
print(ServerFrames(limits).feed({fragment!r}), loaded())
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == [
        r"[b'{}'] [b'\x88\x05\x03\xe8bye'] True False",
        "[] True",
    ]

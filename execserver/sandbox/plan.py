"""What a sandboxed process sees and may do, as plain data.

A plan is made from a policy and from facts about the host (`planner`), and carried out by `view` or put
into the words of another back end.  Two plans are equal exactly when their views would be equal.  Nothing
here does any I/O.  Paths are absolute, bytes, and free of links.

Every view has a /dev and a /proc of its own, put in place after the root and before the first mount; nothing
of the host's is ever bound over them, but below /dev/shm.
"""

from __future__ import annotations

# What the root of the view is.
ROOT_HOST = "host"  # files are not restricted: no mount namespace is needed
ROOT_READ_ONLY = "read-only"  # the host's tree, read-only
ROOT_WRITABLE = "writable"  # the host's tree, writable but for what the mounts take away
ROOT_EMPTY = "empty"  # nothing but what the mounts bring

# What a mount does.
READ = "read"  # the source, read-only, at its path
WRITE = "write"  # the source, writable
HIDDEN_DIRECTORY = "hidden-directory"  # an empty directory nobody may enter
PASSAGE = "passage"  # an empty directory that can be passed through to a mount below it
HIDDEN_FILE = "hidden-file"  # an empty file nobody may open
LINK = "link"  # a symbolic link in an empty root or a passage; `source` is its text, as it is on the host

NETWORK_HOST = "host"
NETWORK_NONE = "none"
NETWORK_PROXY = "proxy"  # loopback only, with routes to proxies of the host

FILTER_NONE = "none"  # where nothing is restricted
FILTER_RESTRICTED = "restricted"  # the wire contract's restricted network filter
FILTER_PROXY_ROUTED = "proxy-routed"
FILTER_OPEN = "open"  # for a network that is open: what no sandboxed command may do

# Device, inode and file type (the S_IFMT bits of the mode); None where nothing exists.
Identity = tuple[int, int, int]


class _Value:
    """Compared and printed by its fields."""

    __slots__: tuple[str, ...] = ()

    def key(self) -> tuple[object, ...]:
        """Return the fields in their order."""
        return tuple(getattr(self, name) for name in self.__slots__)

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and isinstance(other, _Value) and other.key() == self.key()

    def __hash__(self) -> int:
        return hash(self.key())

    def __repr__(self) -> str:
        fields = ", ".join(f"{name}={getattr(self, name)!r}" for name in self.__slots__)
        return f"{type(self).__name__}({fields})"


class Mount(_Value):
    """One step of building the view, at `path` in the view.

    `source` is the host's path that READ and WRITE bind (for these the same as `path`; empty for masks) and
    `identity` what was found there: another object at that path when the view is built is a refusal.  It is
    None for links, and for masks below the view's own /dev and /proc, where nothing of the host's is.  Masks
    cover what exists in the view already; READ, WRITE and LINK below an empty root or a passage need their
    mount point and its parents made.
    """

    __slots__ = ("identity", "kind", "path", "source")

    def __init__(self, kind: str, path: bytes, source: bytes = b"", identity: Identity | None = None) -> None:
        self.kind = kind
        self.path = path
        self.source = source
        self.identity = identity


class Missing(_Value):
    """A protected path that does not exist: nobody inside may create it.

    `path` is its first missing component, below the existing `parent`; `directory` tells what a placeholder
    must be.  `metadata` marks the names `.git`, `.agents` and `.codex`.
    """

    __slots__ = ("directory", "metadata", "parent", "path")

    def __init__(self, path: bytes, parent: Identity, directory: bool, metadata: bool) -> None:
        self.path = path
        self.parent = parent
        self.directory = directory
        self.metadata = metadata


class ViewPlan(_Value):
    """The whole view.

    `mounts` are carried out in order, a parent before what is below it.  `missing` are protected paths
    without a mount.  `globs` are absolute deny patterns, already expanded into `mounts` as far as they
    matched.  `writable` and `readable` are the roots for back ends that grant instead of masking, and
    `read_only` and `denied` what must be taken away again below them.  With `nesting` commands may mount in
    user namespaces of their own, and write to FIFOs outside the writable roots.
    """

    __slots__ = (
        "denied",
        "globs",
        "missing",
        "mounts",
        "nesting",
        "network",
        "read_only",
        "readable",
        "root",
        "syscall_filter",
        "writable",
    )

    def __init__(
        self,
        root: str,
        mounts: tuple[Mount, ...] = (),
        missing: tuple[Missing, ...] = (),
        globs: tuple[bytes, ...] = (),
        network: str = NETWORK_NONE,
        syscall_filter: str = FILTER_RESTRICTED,
        writable: tuple[bytes, ...] = (),
        readable: tuple[bytes, ...] = (),
        read_only: tuple[bytes, ...] = (),
        denied: tuple[bytes, ...] = (),
        nesting: bool = False,
    ) -> None:
        self.root = root
        self.mounts = mounts
        self.missing = missing
        self.globs = globs
        self.network = network
        self.syscall_filter = syscall_filter
        self.writable = writable
        self.readable = readable
        self.read_only = read_only
        self.denied = denied
        self.nesting = nesting


class PlanRefused(Exception):
    """The policy cannot be enforced here; the message says why, in the contract's words where it has some."""

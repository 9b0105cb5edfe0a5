"""The sandbox plan: what a sandboxed process sees and may do, as plain data.

A plan is made from a policy and host facts (`planner`).  The native back end carries it out
(`rootfs.builder`); the others translate it.  Two plans are equal exactly if their sandbox roots would be
equal.  Nothing here does any I/O.  Paths are absolute, bytes, and without symlinks.

Every sandbox root has a /dev and a /proc of its own, put in place after the root and before the first mount.
Nothing of the host's is ever bound over them, except below /dev/shm.
"""

from __future__ import annotations

# What the sandbox root begins with.
ROOT_HOST = "host"  # files are not restricted: no mount namespace is needed
ROOT_READ_ONLY = "read-only"  # the host's tree, read-only
ROOT_WRITABLE = "writable"  # the host's tree, writable except for what the mounts take away
ROOT_EMPTY = "empty"  # nothing but what the mounts bring

# What a mount does.
READ = "read"  # the source, read-only, at its path
WRITE = "write"  # the source, writable
HIDDEN_DIRECTORY = "hidden-directory"  # a mask: an empty directory that nobody may enter
PASSAGE = "passage"  # a mask with a mount below it: can be walked through, but not listed
HIDDEN_FILE = "hidden-file"  # a mask: an empty file that nobody may open
LINK = "link"  # a symlink in an empty root or a passage; `source` is its text, as it is on the host

NETWORK_HOST = "host"
NETWORK_NONE = "none"
NETWORK_PROXY = "proxy"  # loopback only, with routes to proxies of the host

FILTER_NONE = "none"  # where nothing is restricted
FILTER_RESTRICTED = "restricted"  # the wire contract's restricted network filter
FILTER_PROXY_ROUTED = "proxy-routed"
FILTER_OPEN = "open"  # where the network is open: only what is refused to every sandboxed command

# A file identity: device, inode and file type (the S_IFMT bits of the mode).
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
    """One step of building the sandbox root, at `path` in it.

    `source` is the host's path that READ and WRITE bind: the same as `path`.  It is empty for masks.
    `identity` is what planning found there; a start that finds another object is refused.  It is None for
    symlinks, and for masks below the sandbox root's own /dev and /proc, where nothing is the host's.

    Masks cover what exists in the sandbox root already.  For READ, WRITE and LINK below an empty root or a
    passage, the mount point and its parents have to be made.
    """

    __slots__ = ("identity", "kind", "path", "source")

    def __init__(self, kind: str, path: bytes, source: bytes = b"", identity: Identity | None = None) -> None:
        self.kind = kind
        self.path = path
        self.source = source
        self.identity = identity


class Missing(_Value):
    """A protected path that does not exist: nobody inside may create it.

    `path` is its first missing component, below the existing `parent`.  `directory` tells what its mask
    target must be.  `metadata` marks the names `.git`, `.agents` and `.codex`.
    """

    __slots__ = ("directory", "metadata", "parent", "path")

    def __init__(self, path: bytes, parent: Identity, directory: bool, metadata: bool) -> None:
        self.path = path
        self.parent = parent
        self.directory = directory
        self.metadata = metadata


class SandboxPlan(_Value):
    """The whole sandbox plan.

    `mounts` are carried out in order, a parent before what is below it.  `missing` are protected paths that
    do not exist.  `globs` are absolute deny patterns; what they match now is in `mounts` already, and the
    path guard needs them for files made later.

    For back ends that grant instead of masking, `writable` and `readable` are the roots to grant; `read_only`
    and `denied` are what must be taken away again below them.  With `nesting`, commands may mount in user
    namespaces of their own, and write to FIFOs outside the writable roots.
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

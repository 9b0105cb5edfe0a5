"""Section 8.7's rules once more: slow, by lists and sorting, and with `re` for patterns.

`names` decides about a path as the policy spells it, `places` about what is really there, where every rule is
moved to where its path leads and rules that meet leave the least.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import cache, cached_property
from typing import NamedTuple

from execserver.protocol.paths import PathUri
from tests.sandbox.policies import Rules
from tests.support.fake_host import FakeHost

STRENGTH = {"read": 0, "write": 1, "deny": 2}
LEAST = {"deny": 0, "read": 1, "write": 2}
NAMES = (".git", ".agents", ".codex")
PLATFORM = ["/bin", "/sbin", "/usr", "/etc", "/lib", "/lib64", "/nix/store", "/run/current-system/sw"]


class Grant(NamedTuple):
    """A rule with a path of its own."""

    path: str
    access: str


class Model:
    """One context on one host."""

    def __init__(
        self, host: FakeHost, rules: Rules, cwd: str, roots: tuple[str, ...], for_files: bool
    ) -> None:
        self.host = host
        self.rules = rules
        self.cwd = cwd
        self.roots = roots or (cwd,)
        self.for_files = for_files

    # --- what the rules are about -----------------------------------------------------------------------

    def grants(self) -> list[Grant]:
        """Return the rules that are about a path."""
        found = []
        for place, access in self.rules:
            kind, _, below = place.partition("/")
            if place.startswith("/"):
                found.append(Grant(PathUri.parse(place).native().decode(), access))
            elif kind == "root":
                found.append(Grant("/", access))
            elif kind == "project_roots":
                found += [Grant(tidy(f"{root}/{below}"), access) for root in self.roots]
            elif kind == "tmpdir" and self.host.tmpdir and tidy(self.host.tmpdir.decode()) != "/":
                found.append(Grant(tidy(self.host.tmpdir.decode()), access))
            elif kind == "slash_tmp" and self.host.is_dir(b"/tmp"):
                found.append(Grant("/tmp", access))
        return found

    def patterns(self) -> list[str]:
        """Return the absolute deny patterns."""
        found = []
        for place, access in self.rules:
            if not place.startswith("glob:") or access != "deny":
                continue
            pattern = place[5:]
            if pattern.startswith("codex-project-roots://"):
                found += [f"{root}/{pattern[22:]}" for root in self.roots]
            else:
                found.append(pattern if pattern.startswith("/") else f"{self.cwd}/{pattern}")
        return found

    def full_write(self) -> bool:
        """Tell whether nothing narrows write access to the root."""
        if ("root", "write") not in self.rules:
            return False
        written = {place for place, access in self.rules if access == "write"}
        for place, access in self.rules:
            kind = place.partition("/")[0]
            if place.startswith("glob:") and access != "write":
                return False
            if access == "write" or kind in ("minimal", "unknown"):
                continue
            if access == "deny" or (kind != "root" and place not in written):
                return False
        return True

    def has_minimal(self) -> bool:
        """Tell whether the platform's folders may be read."""
        if any(place == "minimal" and access != "deny" for place, access in self.rules):
            return True
        readable = any(place == "root" and access != "deny" for place, access in self.rules)
        return self.for_files and not (readable and all(access != "deny" for _, access in self.rules))

    # --- decisions --------------------------------------------------------------------------------------

    def names(self, path: str) -> str:
        """Decide about a path by its name; only a first name that is a link is followed."""
        platform = [self.aliased(root) for root in PLATFORM] if self.has_minimal() else []
        patterns = [*self.patterns(), *map(self.aliased, self.patterns())]
        return self.decide(self.aliased(path), self.named, patterns, platform)

    def places(self, path: str) -> str:
        """Decide about a path without links by what the rules really lead to."""
        return self.decide(path, *self.placed)

    @cached_property
    def named(self) -> dict[str, str]:
        """The rules by name."""
        best: dict[str, str] = {}
        for grant in self.grants():
            name = self.aliased(grant.path)
            if STRENGTH[grant.access] >= STRENGTH.get(best.get(name, ""), -1):
                best[name] = grant.access
        return best

    @cached_property
    def placed(self) -> tuple[dict[str, str], list[str], list[str]]:
        """The rules, patterns and platform folders, by where they lead."""
        least: dict[str, str] = {}
        for name, access in self.named.items():
            real = self.real(name)
            if LEAST[access] <= LEAST.get(least.get(real, "write"), 2):
                least[real] = access
        patterns = []
        for pattern in self.patterns():
            literal, rest = static(pattern)
            real_start = self.real(literal).rstrip("/")
            patterns.append(re.sub(r"([*?\[\]{}\\])", r"\\\1", real_start) + "/" + rest)
        for pointed in self.git_directories(least):
            least.setdefault(pointed, "read")
        return least, patterns, self.platform(least) if self.has_minimal() else []

    def platform(self, grants: dict[str, str]) -> list[str]:
        """Return where the platform's folders are, but for those that a command could lead elsewhere."""
        return [
            self.real(root)
            for root in PLATFORM
            if all(self.decide(tidy(f"{link}/.."), grants, [], []) != "write" for link in self.links(root))
        ]

    def git_directories(self, grants: dict[str, str]) -> list[str]:
        """Return what `.git` files of writable roots name, where it could be written otherwise."""
        roots = [root for root, access in grants.items() if access == "write"]
        found = []
        for root in roots:
            git_file = f"{root.rstrip('/')}/.git"
            kind, content = self.host.nodes.get(git_file.encode(), (0, b""))
            if kind != 0o100000 or git_file in roots or not content.startswith(b"gitdir: /"):
                continue
            pointed = self.real(content[8:].decode())
            holds_root = any(covers(pointed, other) for other in roots)
            if not holds_root and self.decide(pointed, grants, [], []) == "write":
                found.append(pointed)
        return found

    def decide(
        self, path: str, grants: dict[str, str], patterns: Iterable[str], platform: Iterable[str]
    ) -> str:
        """Weigh everything that is said about a path or what is above it."""
        if self.full_write():
            return "write"
        said: list[tuple[int, int, str, str]] = []
        for grant, access in grants.items():
            if covers(grant, path):
                said.append((depth(grant), STRENGTH[access], access, grant))
        for pattern in patterns:
            matched = [above for above in upwards(path) if regex(pattern).fullmatch(above)]
            said += [(depth(above), STRENGTH["deny"], "deny", above) for above in matched]
        said.sort()
        if not said or (said[-1][2] == "deny" and said[-1][0] == 0):
            return "read" if any(covers(root, path) for root in platform) else "deny"
        _, _, access, grant = said[-1]
        if access == "write":
            below = [name for name in path.split("/") if name][depth(grant) :]
            if below and below[0] in NAMES:
                return "read"
        return access

    # --- paths ------------------------------------------------------------------------------------------

    def aliased(self, path: str) -> str:
        """Return a path with its first name followed."""
        first = "/" + path.split("/")[1]
        kind = self.host.nodes.get(first.encode(), (0, b""))[0]
        followed = self.host._followed(first.encode())
        if kind == 0o120000 and followed is not None:
            return tidy(followed.decode() + path[len(first) :])
        return path

    def real(self, path: str, links: int = 0) -> str:
        """Return where a path leads, with what is missing of it; nowhere of its own for links in a circle."""
        if links > 40:
            return "/circle"
        names = [name for name in path.split("/") if name]
        missing: list[str] = []
        while True:
            here = "/" + "/".join(names)
            followed = self.host._followed(here.encode())
            if followed is not None:
                found = tidy("/".join([followed.decode(), *missing]))
                return self.real(found, links + 1) if missing and found != path else found
            link = self.host.nodes.get(here.encode(), (0, b""))
            if link[0] == 0o120000:
                text = link[1].decode()
                target = text if text.startswith("/") else "/".join([*names[:-1], text])
                return self.real(tidy("/".join(["", target, *missing])), links + 1)
            missing.insert(0, names.pop())

    def links(self, path: str) -> list[str]:
        """Return the links on the way to where a path leads."""
        at, names = "", path.split("/")
        found: list[str] = []
        while names and len(found) <= 40:
            name = names.pop(0)
            here = tidy(f"{at}/{name}")
            kind, content = self.host.nodes.get(here.encode(), (0, b""))
            if kind == 0o120000:
                found.append(here)
                names = content.decode().split("/") + names
                at = "" if content.startswith(b"/") else at
            else:
                at = here
        return found


def tidy(path: str) -> str:
    """Return an absolute path without dots and empty names."""
    done: list[str] = []
    for name in path.split("/"):
        if name == "..":
            done = done[:-1]
        elif name not in ("", "."):
            done.append(name)
    return "/" + "/".join(done)


def upwards(path: str) -> list[str]:
    """Return a path and all above it."""
    names = path.split("/")
    return ["/".join(names[:count]) or "/" for count in range(1, len(names) + 1)] if path != "/" else ["/"]


def covers(root: str, path: str) -> bool:
    """Tell whether a path is at or below another."""
    return root in upwards(path)


def depth(path: str) -> int:
    """Return the number of names in a path."""
    return len([name for name in path.split("/") if name])


def static(pattern: str) -> tuple[str, str]:
    """Split a pattern before its first name with something special in it; at least one name stays."""
    names = tidy(pattern).split("/")
    count = 1
    while count < len(names) - 1 and not set(names[count]) & set("*?[{\\"):
        count += 1
    return "/".join(names[:count]) or "/", "/".join(names[count:])


@cache
def regex(pattern: str) -> re.Pattern[str]:
    """Translate a pattern of plain names, `*`, `?`, `**` and backslashes."""
    out = ""
    names = tidy(pattern).split("/")[1:]
    for index, name in enumerate(names):
        if name == "**":
            out += "(?:/[^/]+)+" if index == len(names) - 1 else "(?:/[^/]+)*"
            continue
        out += "/"
        escaped = False
        for character in name:
            if escaped or character not in "*?\\":
                out += re.escape(character)
                escaped = False
            elif character == "\\":
                escaped = True
            else:
                out += "[^/]*" if character == "*" else "[^/]"
    return re.compile(out, re.DOTALL)

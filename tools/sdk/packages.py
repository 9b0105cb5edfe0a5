"""What the metadata of the SDK's packages say, besides the version, which is the server's for all."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

REQUIRES_PYTHON = ">=3.11"
LICENCE = "Apache-2.0"
CLASSIFIERS = (
    "Development Status :: 4 - Beta",
    "Intended Audience :: Developers",
    "Operating System :: OS Independent",
    "Programming Language :: Python :: 3",
    "Programming Language :: Python :: 3 :: Only",
    "Programming Language :: Python :: 3.11",
    "Programming Language :: Python :: 3.12",
    "Programming Language :: Python :: 3.13",
    "Programming Language :: Python :: 3.14",
    "Topic :: Software Development :: Libraries :: Python Modules",
    "Typing :: Typed",
)
_EXTRAS_FILE = "EXTRAS.toml"


class Package(NamedTuple):
    """One distribution: its module, the page it is presented with, and what it needs."""

    name: str
    module: str
    summary: str
    readme: str
    requires: tuple[str, ...]
    extras: Mapping[str, tuple[str, ...]] = {}
    entry_points: Mapping[str, tuple[str, ...]] = {}
    classifiers: tuple[str, ...] = ()

    def metadata(self, version: str, readme: str) -> str:
        """Return the text of METADATA."""
        lines = [
            "Metadata-Version: 2.4",
            f"Name: {self.name}",
            f"Version: {version}",
            f"Summary: {self.summary}",
            f"License-Expression: {LICENCE}",
            "License-File: LICENSE",
            f"Requires-Python: {REQUIRES_PYTHON}",
            *(f"Classifier: {each}" for each in sorted((*CLASSIFIERS, *self.classifiers))),
            *(f"Requires-Dist: {each.format(version=version)}" for each in self.requires),
            *self._extra_lines(version),
            "Description-Content-Type: text/markdown",
        ]
        return "\n".join([*lines, "", readme])

    def _extra_lines(self, version: str) -> Iterator[str]:
        for extra, requirements in self.extras.items():
            yield f"Provides-Extra: {extra}"
            for each in requirements:
                requirement, _, marker = each.format(version=version).partition(";")
                condition = f"({marker.strip()}) and extra" if marker else "extra"
                yield f"Requires-Dist: {requirement.strip()} ; {condition} == '{extra}'"

    def entry_points_text(self) -> str:
        """Return the text of entry_points.txt; nothing if there are none."""
        groups = ("\n".join([f"[{group}]", *lines, ""]) for group, lines in self.entry_points.items())
        return "\n".join(groups)


CLIENT = Package(
    name="execserver-client",
    module="execserver_client",
    summary="Run commands and work on files of another machine or a sandbox: asyncio and blocking client",
    readme="client.md",
    requires=("msgspec>=0.18.6", "websockets>=15.0"),
    extras={"relay": ("cryptography>=48.0.0,<51",), "fast": ("pybase64>=1.3.2",)},
    classifiers=("Framework :: AsyncIO",),
)


def packages(root: Path) -> list[Package]:
    """Return all packages of the SDK; what the frameworks need is read from beside their adapters."""
    told = tomllib.loads((root / "sdk" / "execserver_adapters" / _EXTRAS_FILE).read_text())
    adapters = Package(
        name="execserver-adapters",
        module="execserver_adapters",
        summary="exec-servers as sandboxes and environments of agent frameworks",
        readme="adapters.md",
        requires=("execserver-client=={version}",),
        extras={name: tuple(each) for name, each in told["extras"].items()},
        entry_points={
            group: tuple(f"{name} = {module}" for name, module in points.items())
            for group, points in told["entry-points"].items()
        },
    )
    plugin = Package(
        name="pytest-execserver",
        module="pytest_execserver",
        summary="pytest fixtures that are private exec-servers",
        readme="pytest.md",
        requires=("execserver-client=={version}", "pytest>=7.4"),
        extras={"server": ("execserver=={version}",)},
        entry_points={"pytest11": ("execserver = pytest_execserver.plugin",)},
        classifiers=("Framework :: Pytest",),
    )
    return [CLIENT, adapters, plugin]

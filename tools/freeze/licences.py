"""The licence texts of everything that a built file carries, as the page that `execserver licenses` prints.

What a distribution says about itself is in its wheel: its licence files, and where it has one, a list of what
was compiled into it (an SBOM).  The texts of the rest lie in `texts/`: of Python, of the libraries of the
system, of what such a list names, and of what is compiled in without being listed.
"""

from __future__ import annotations

import json
import os
import textwrap
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from execserver.version import __version__
from tools.freeze.analysis import Analysis
from tools.freeze.platforms import Platform
from tools.problems import Problem, say

TEXTS = Path(__file__).with_name("texts")
OWN = Path(__file__).parents[2] / "LICENSE"
_WIDTH = 110

# Beside the SPDX names: texts that belong to one project.
PYTHON_TEXTS = ("python", "python-incorporated")

# Compiled into a distribution's wheel, which does not say so: name, licence, notice.
BUNDLED = {
    "gevent": (
        ("libev", "BSD-2-Clause", "Copyright (c) 2007-2020 Marc Alexander Lehmann <libev@schmorp.de>"),
        (
            "c-ares",
            "MIT",
            "Copyright (c) 1998 Massachusetts Institute of Technology\n"
            "Copyright (c) 2007-2025 Daniel Stenberg with many contributors",
        ),
        ("libuv", "MIT", "Copyright (c) 2015-present libuv project contributors.\nCopyright Joyent, Inc."),
    ),
}
UNSAID = {"openssl": "Apache-2.0"}  # components of an SBOM that come without a licence

# The beginning of a library's name -> its project, licence and notice.
LIBRARIES = {
    **dict.fromkeys(
        ("ld-linux", "libc.so", "libm.so", "libpthread.so", "librt.so", "libdl.so", "libutil.so"),
        ("GNU C library", "LGPL-2.1-or-later AND glibc", ""),
    ),
    **dict.fromkeys(
        ("libcrypto.so", "libssl.so"),
        (
            "OpenSSL",
            "Apache-2.0",
            "Copyright (c) 1998-2025 The OpenSSL Project Authors. All rights reserved.",
        ),
    ),
    **dict.fromkeys(
        ("libgcc_s.so", "libstdc++.so"),
        (
            "GCC runtime libraries",
            "GPL-3.0-or-later WITH GCC-exception-3.1",
            "Copyright (C) Free Software Foundation, Inc.",
        ),
    ),
    "libffi.so": ("libffi", "MIT", "Copyright (c) 1996-2022 Anthony Green, Red Hat, Inc and others."),
    "libz.so": ("zlib", "Zlib", "Copyright (C) 1995-2024 Jean-loup Gailly and Mark Adler"),
    "libsqlite3.so": ("SQLite", "blessing", ""),
    "libexpat.so": (
        "Expat",
        "MIT",
        "Copyright (c) 1998-2000 Thai Open Source Software Center Ltd and Clark Cooper\n"
        "Copyright (c) 2001-2024 Expat maintainers",
    ),
    "libpython": ("Python", "", ""),  # told with the interpreter
}
# In the launcher, when the packaged compiler has made it.
MUSL = ("musl, in the launcher if zig compiled it", "MIT", "Copyright (c) 2005-2020 Rich Felker, et al.")


class Part(NamedTuple):
    """Something that is carried: its name, its licence as it says it, and the texts of that."""

    name: str
    licence: str
    texts: tuple[str, ...]


def known(name: str, licence: str, notice: str = "") -> Part:
    """Return something whose licence is a name that SPDX has, or that of a file in `texts/`."""
    texts = tuple(_text(each).read_text() for each in chosen(licence))
    return Part(name, licence, (f"{notice}\n\n{texts[0]}", *texts[1:]) if notice else texts)


def chosen(licence: str) -> list[str]:
    """Return the texts that an SPDX expression asks for; of a choice Apache's, or the first one.

    Raises Problem for a licence whose text is not here.
    """
    wanted: list[str] = []
    for term in licence.replace("(", "").replace(")", "").split(" AND "):
        choices = [[_file(name) for name in each.split(" WITH ")] for each in term.split(" OR ")]
        there = [each for each in choices if all(_text(name).exists() for name in each)]
        if not there:
            raise Problem(f"there is no text of the licence {licence!r}", f"put it into {TEXTS}")
        wanted += min(there, key=lambda names: names != ["apache-2.0"])
    return wanted


def _text(name: str) -> Path:
    return OWN if name == "apache-2.0" else TEXTS / f"{name}.txt"


def _file(name: str) -> str:
    return name.strip().lower().removesuffix("-or-later").removesuffix("-only")


def of_distribution(files: dict[str, bytes]) -> list[Part]:
    """Return a distribution, of which `files` is the `.dist-info`, and what is compiled into it."""
    named = {name.partition(".dist-info/")[2]: data for name, data in files.items()}
    said = [line.partition(": ") for line in named["METADATA"].decode().partition("\n\n")[0].splitlines()]
    about = {name: value for name, _, value in reversed(said)}
    texts = [data.decode() for name, data in sorted(named.items()) if _is_text(name)]
    licence = about.get("License-Expression") or about.get("License", "see its text")
    parts = [Part(f"{about['Name']} {about['Version']}", licence, tuple(texts))]
    for name, data in sorted(named.items()):
        if name.startswith("sboms/") and name.endswith(".json"):
            parts += [_component(each, about["Name"]) for each in json.loads(data)["components"]]
    parts += [known(f"{name}, in {about['Name']}", *rest) for name, *rest in BUNDLED.get(about["Name"], ())]
    return parts


def _is_text(name: str) -> bool:
    return name.startswith("licenses/") or name.upper().startswith(
        ("LICENSE", "LICENCE", "COPYING", "NOTICE")
    )


def _component(component: dict[str, object], home: str) -> Part:
    name = " ".join(str(component[key]) for key in ("name", "version") if key in component)
    listed = component.get("licenses")
    licence = UNSAID.get(str(component["name"]), "")
    if isinstance(listed, list):
        licence = str(listed[0].get("expression") or listed[0]["license"]["id"])
    author = str(component.get("author", ""))
    part = known(f"{name}, in {home}", " ".join(licence.split()))
    return part._replace(name=f"{part.name}, by {author}" if author else part.name)


def of_libraries(names: Iterable[str]) -> list[Part]:
    """Return the projects that some shared libraries of the system are from."""
    projects: dict[tuple[str, str, str], list[str]] = {}
    for name in sorted(names):
        found = next((each for start, each in LIBRARIES.items() if name.startswith(start)), None)
        if found is None:
            say(f"{name} is carried, and its licence is not known: see tools/freeze/licences.py")
        elif found[1]:
            projects.setdefault(found, []).append(name)
    return [known(f"{name} ({', '.join(files)})", *rest) for (name, *rest), files in projects.items()]


def of_the_one_file(found: Analysis, libraries: Iterable[str], platform: Platform) -> list[Part]:
    """Return what is in dist/execserver beside the product."""
    carried = {os.path.realpath(path) for each in found for path in each.values()}
    parts = []
    for files in platform.distributions:
        if carried.isdisjoint(os.path.realpath(path) for path in files.values()):
            continue
        about = {name: path.read_bytes() for name, path in files.items() if ".dist-info/" in name}
        parts += of_distribution(about)
    texts = tuple(_text(name).read_text() for name in PYTHON_TEXTS)
    python = Part(f"Python {platform.version}", "PSF-2.0", texts)
    return [python, *parts, *of_libraries(libraries), known(*MUSL)]


def of_wheels(served: Iterable[dict[str, bytes]]) -> list[Part]:
    """Return what is in dist/execserver.pyz beside the product: whole wheels, for several Pythons."""
    parts: dict[str, Part] = {}
    for files in served:
        folders = sorted({name.partition("/")[0] for name in files if ".dist-info/" in name})
        for folder in folders:
            own = {name: data for name, data in files.items() if name.startswith(f"{folder}/")}
            parts.update((part.name, part) for part in of_distribution(own))
    return list(parts.values())


def page(parts: list[Part]) -> str:
    """Return the page: what is carried under which licence, then each text once, with those it is of."""
    everything = [Part(f"execserver {__version__}", "Apache-2.0", (OWN.read_text(),)), *parts]
    lines = ["What this file carries, and the licence of each; the texts follow.", ""]
    lines += [f"  {part.name}: {part.licence}" for part in everything]
    holders: dict[str, list[str]] = {}
    for part in everything:
        for text in part.texts:
            holders.setdefault(text.strip("\n"), []).append(part.name)
    for text, names in holders.items():
        shown = textwrap.fill(f"The licence of {'; '.join(names)}:", _WIDTH, break_long_words=False)
        lines += ["", "=" * _WIDTH, shown, "", text]
    return "\n".join(lines) + "\n"

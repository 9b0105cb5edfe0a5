"""What the package asks for: ranges, whose ends are the versions that were tried."""

from __future__ import annotations

import importlib.metadata
import sys
import tomllib

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

from tests.support.source import ROOT, modules
from tools.environment import pins

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
RANGES = {canonicalize_name(each.name): each.specifier for each in map(Requirement, PROJECT["dependencies"])}


def versions(file: str) -> dict[str, str]:
    found = (pin.partition("==") for pin in pins([ROOT / file]))
    return {canonicalize_name(name): version for name, _, version in found}


def lower_end(specifier: SpecifierSet) -> list[str]:
    return [each.version for each in specifier if each.operator == ">="]


def test_every_range_has_both_ends() -> None:
    for name, specifier in RANGES.items():
        assert sorted(each.operator for each in specifier) == ["<", ">="], name


def test_every_pin_lies_in_its_range() -> None:
    pinned = versions("requirements.txt")
    assert RANGES.keys() - pinned.keys() == set()
    assert [name for name, specifier in RANGES.items() if not specifier.contains(pinned[name])] == []


def test_the_lowest_versions_are_the_ends_of_the_ranges() -> None:
    lowest = versions("requirements-lowest.txt")
    assert {name: [version] for name, version in lowest.items()} == {
        name: lower_end(specifier) for name, specifier in RANGES.items()
    }


def test_what_is_imported_is_asked_for_and_nothing_else() -> None:
    product = modules("execserver", "helpers")
    tops = {found.module.partition(".")[0] for module in product for found in module.imports()}
    homes = importlib.metadata.packages_distributions()
    others = tops - set(sys.stdlib_module_names) - {"execserver", "helpers"}
    assert {canonicalize_name(home) for top in others for home in homes[top]} == set(RANGES)


def test_the_licence_is_declared() -> None:
    assert (PROJECT["license"], PROJECT["license-files"]) == ("Apache-2.0", ["LICENSE"])
    text = (ROOT / "LICENSE").read_text()
    assert "Apache License" in text
    assert "END OF TERMS AND CONDITIONS" in text

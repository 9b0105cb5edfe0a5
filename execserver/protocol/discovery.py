"""What the server's machine offers to its clients' agents: configuration, skills, plugins (section 10)."""

from __future__ import annotations

from execserver.protocol.paths import PathUri
from execserver.protocol.record import Record

TomlPath = tuple[str, ...]


class EnvironmentConfigReadParams(Record, frozen=True, kw_only=True):
    """The directory whose projects count, and which parts of the files are wanted, as lists of keys."""

    cwd: PathUri
    config_paths: tuple[TomlPath, ...]
    requirements_paths: tuple[TomlPath, ...]


class ConfigLayer(Record, frozen=True, kw_only=True):
    """The wanted parts of one file, as TOML; `baseDir` is its folder."""

    source: str
    base_dir: PathUri
    toml: str


class ConfigStack(Record, frozen=True, kw_only=True):
    """The files that have wanted parts, lowest first, and where a client inserts those it has elsewhere."""

    layers: tuple[ConfigLayer, ...] = ()
    cloud_insertion_index: int = 0


class EnvironmentConfigReadResponse(Record, frozen=True, kw_only=True):
    """The configuration files of this machine."""

    user_home_dir: PathUri | None = None
    codex_home_dir: PathUri
    hostname: str | None = None
    config: ConfigStack
    requirements: ConfigStack

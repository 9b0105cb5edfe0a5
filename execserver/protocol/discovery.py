"""What the server's machine offers to its clients' agents: configuration, skills, plugins (section 10)."""

from __future__ import annotations

from execserver.protocol.paths import PathUri
from execserver.protocol.record import Record
from execserver.protocol.sandbox import FileSystemSandboxContext

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


class CapabilityRootParams(Record, frozen=True, kw_only=True):
    """A folder to search, under a name that the client chose; the sandbox says what may be read there."""

    id: str
    path: PathUri
    sandbox: FileSystemSandboxContext | None = None


class WireCapabilityRootsDiscoverParams(Record, frozen=True, kw_only=True):
    """The folders to search, at most 128."""

    roots: tuple[CapabilityRootParams, ...]


class CapabilityFile(Record, frozen=True, kw_only=True):
    """A file with its text."""

    path: PathUri
    contents: str


class PluginFiles(Record, frozen=True, kw_only=True):
    """The files of a plugin: its manifest and what that names."""

    manifest: CapabilityFile
    mcp_config: CapabilityFile | None = None
    apps_config: CapabilityFile | None = None


class SkillFiles(Record, frozen=True, kw_only=True):
    """The files of a skill: SKILL.md, and agents/openai.yaml beside it."""

    instructions: CapabilityFile
    metadata: CapabilityFile | None = None


class CapabilityRoot(Record, frozen=True, kw_only=True):
    """What one folder holds; with `error` nothing."""

    id: str
    path: PathUri
    plugin: PluginFiles | None = None
    skills: tuple[SkillFiles, ...] = ()
    namespace_manifests: tuple[CapabilityFile, ...] = ()
    warnings: tuple[str, ...] = ()
    error: str | None = None


class CapabilityRootsDiscoverResponse(Record, frozen=True, kw_only=True):
    """The folders in the order of the request."""

    roots: tuple[CapabilityRoot, ...]

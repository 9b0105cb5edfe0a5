"""What the server's machine offers to its clients' agents: configuration, skills, plugins (section 10)."""

from __future__ import annotations

import msgspec

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


class DiscoverV2CapabilitiesRequest(Record, frozen=True, kw_only=True):
    """A directory, which changes nothing, and the sandbox that says what may be read."""

    cwd: PathUri
    sandbox: FileSystemSandboxContext | None = None


class SkillTool(Record, frozen=True, kw_only=True):
    """A tool that a skill needs."""

    type: str
    value: str
    description: str | None = None
    transport: str | None = None
    command: str | None = None
    url: str | None = None
    oauth_callback_port: int | None = None


class SkillDependencies(Record, frozen=True, kw_only=True):
    """What a skill needs."""

    tools: tuple[SkillTool, ...]


class SkillPolicy(Record, frozen=True, kw_only=True):
    """Whether a skill may be used without being asked for, and in which products."""

    allow_implicit_invocation: bool | None = None
    products: tuple[str, ...] = ()


class DiscoveryRoot(Record, frozen=True, kw_only=True):
    """The folder in which a skill was found; skills of plugins have none."""

    id: str
    path: PathUri


class DiscoveredSkill(Record, frozen=True, kw_only=True):
    """A skill: what its SKILL.md says at its beginning, and the metadata beside it."""

    name: str
    description: str
    short_description: str | None = None
    path: PathUri
    discovery_root: DiscoveryRoot | msgspec.UnsetType = msgspec.UNSET
    dependencies: SkillDependencies | None = None
    policy: SkillPolicy | None = None


class DiscoveredPlugin(Record, frozen=True, kw_only=True):
    """An installed plugin with its skills; `id` is `<name>@<marketplace>`."""

    id: str
    display_name: str
    remote_plugin_id: str | None = None
    version: str
    root: PathUri
    files: PluginFiles
    skills: tuple[DiscoveredSkill, ...] = ()


class DiscoverV2CapabilitiesResponse(Record, frozen=True, kw_only=True):
    """The plugins and skills of this machine."""

    plugins: tuple[DiscoveredPlugin, ...] = ()
    skills: tuple[DiscoveredSkill, ...] = ()
    warnings: tuple[str, ...] = ()

"""The wire contract as data: messages, methods, records, errors and paths.  No I/O and no clock.

Every params and result record can be imported from here under its name in the contract, e.g.
`from execserver.protocol import InitializeParams`.  The records are loaded when the first one is needed, so
a helper process that only wants `execserver.protocol.errors` does not pay for them.
"""

from __future__ import annotations

TYPE_CHECKING = False  # the usual name; `typing` itself is too slow to import for helper processes
if TYPE_CHECKING:
    from execserver.protocol.batches import FsListEntry as FsListEntry
    from execserver.protocol.batches import FsListParams as FsListParams
    from execserver.protocol.batches import FsListResponse as FsListResponse
    from execserver.protocol.batches import FsNodeKind as FsNodeKind
    from execserver.protocol.batches import FsReadManyFile as FsReadManyFile
    from execserver.protocol.batches import FsReadManyParams as FsReadManyParams
    from execserver.protocol.batches import FsReadManyResponse as FsReadManyResponse
    from execserver.protocol.batches import FsWriteEntry as FsWriteEntry
    from execserver.protocol.batches import FsWriteError as FsWriteError
    from execserver.protocol.batches import FsWriteManyParams as FsWriteManyParams
    from execserver.protocol.batches import FsWriteManyResponse as FsWriteManyResponse
    from execserver.protocol.batches import FsWritePartParams as FsWritePartParams
    from execserver.protocol.batches import FsWritePartResponse as FsWritePartResponse
    from execserver.protocol.changes import FsChmodParams as FsChmodParams
    from execserver.protocol.changes import FsChmodResponse as FsChmodResponse
    from execserver.protocol.changes import FsGetVersionParams as FsGetVersionParams
    from execserver.protocol.changes import FsGetVersionResponse as FsGetVersionResponse
    from execserver.protocol.changes import FsRenameParams as FsRenameParams
    from execserver.protocol.changes import FsRenameResponse as FsRenameResponse
    from execserver.protocol.changes import FsTouchParams as FsTouchParams
    from execserver.protocol.changes import FsTouchResponse as FsTouchResponse
    from execserver.protocol.discovery import CapabilityFile as CapabilityFile
    from execserver.protocol.discovery import CapabilityRoot as CapabilityRoot
    from execserver.protocol.discovery import CapabilityRootParams as CapabilityRootParams
    from execserver.protocol.discovery import (
        CapabilityRootsDiscoverResponse as CapabilityRootsDiscoverResponse,
    )
    from execserver.protocol.discovery import ConfigLayer as ConfigLayer
    from execserver.protocol.discovery import ConfigStack as ConfigStack
    from execserver.protocol.discovery import DiscoveredPlugin as DiscoveredPlugin
    from execserver.protocol.discovery import DiscoveredSkill as DiscoveredSkill
    from execserver.protocol.discovery import DiscoverV2CapabilitiesRequest as DiscoverV2CapabilitiesRequest
    from execserver.protocol.discovery import DiscoverV2CapabilitiesResponse as DiscoverV2CapabilitiesResponse
    from execserver.protocol.discovery import DiscoveryRoot as DiscoveryRoot
    from execserver.protocol.discovery import EnvironmentConfigReadParams as EnvironmentConfigReadParams
    from execserver.protocol.discovery import EnvironmentConfigReadResponse as EnvironmentConfigReadResponse
    from execserver.protocol.discovery import PluginFiles as PluginFiles
    from execserver.protocol.discovery import SkillDependencies as SkillDependencies
    from execserver.protocol.discovery import SkillFiles as SkillFiles
    from execserver.protocol.discovery import SkillPolicy as SkillPolicy
    from execserver.protocol.discovery import SkillTool as SkillTool
    from execserver.protocol.discovery import (
        WireCapabilityRootsDiscoverParams as WireCapabilityRootsDiscoverParams,
    )
    from execserver.protocol.environment import Bubblewrap as Bubblewrap
    from execserver.protocol.environment import Capabilities as Capabilities
    from execserver.protocol.environment import EnvironmentInfo as EnvironmentInfo
    from execserver.protocol.environment import EnvironmentSandboxResponse as EnvironmentSandboxResponse
    from execserver.protocol.environment import EnvironmentStatus as EnvironmentStatus
    from execserver.protocol.environment import EnvironmentStatusResponse as EnvironmentStatusResponse
    from execserver.protocol.environment import Extensions as Extensions
    from execserver.protocol.environment import SandboxCheck as SandboxCheck
    from execserver.protocol.environment import SandboxPolicy as SandboxPolicy
    from execserver.protocol.environment import ShellInfo as ShellInfo
    from execserver.protocol.file_watches import FsChange as FsChange
    from execserver.protocol.file_watches import FsChangeKind as FsChangeKind
    from execserver.protocol.file_watches import FsChangesNotification as FsChangesNotification
    from execserver.protocol.file_watches import FsUnwatchParams as FsUnwatchParams
    from execserver.protocol.file_watches import FsUnwatchResponse as FsUnwatchResponse
    from execserver.protocol.file_watches import FsWatchParams as FsWatchParams
    from execserver.protocol.file_watches import FsWatchResponse as FsWatchResponse
    from execserver.protocol.file_watches import FsWatchResumeParams as FsWatchResumeParams
    from execserver.protocol.file_watches import FsWatchResumeResponse as FsWatchResumeResponse
    from execserver.protocol.files import FileVersion as FileVersion
    from execserver.protocol.files import FsCanonicalizeParams as FsCanonicalizeParams
    from execserver.protocol.files import FsCanonicalizeResponse as FsCanonicalizeResponse
    from execserver.protocol.files import FsCloseParams as FsCloseParams
    from execserver.protocol.files import FsCloseResponse as FsCloseResponse
    from execserver.protocol.files import FsCopyParams as FsCopyParams
    from execserver.protocol.files import FsCopyResponse as FsCopyResponse
    from execserver.protocol.files import FsCreateDirectoryParams as FsCreateDirectoryParams
    from execserver.protocol.files import FsCreateDirectoryResponse as FsCreateDirectoryResponse
    from execserver.protocol.files import FsGetMetadataParams as FsGetMetadataParams
    from execserver.protocol.files import FsGetMetadataResponse as FsGetMetadataResponse
    from execserver.protocol.files import FsMissingChangedNotification as FsMissingChangedNotification
    from execserver.protocol.files import FsOpenMode as FsOpenMode
    from execserver.protocol.files import FsOpenParams as FsOpenParams
    from execserver.protocol.files import FsOpenResponse as FsOpenResponse
    from execserver.protocol.files import FsReadBlockParams as FsReadBlockParams
    from execserver.protocol.files import FsReadBlockResponse as FsReadBlockResponse
    from execserver.protocol.files import FsReadDirectoryEntry as FsReadDirectoryEntry
    from execserver.protocol.files import FsReadDirectoryParams as FsReadDirectoryParams
    from execserver.protocol.files import FsReadDirectoryResponse as FsReadDirectoryResponse
    from execserver.protocol.files import FsReadFileParams as FsReadFileParams
    from execserver.protocol.files import FsReadFileResponse as FsReadFileResponse
    from execserver.protocol.files import FsRemoveParams as FsRemoveParams
    from execserver.protocol.files import FsRemoveResponse as FsRemoveResponse
    from execserver.protocol.files import FsWalkEntry as FsWalkEntry
    from execserver.protocol.files import FsWalkEntryKind as FsWalkEntryKind
    from execserver.protocol.files import FsWalkError as FsWalkError
    from execserver.protocol.files import FsWalkOptions as FsWalkOptions
    from execserver.protocol.files import FsWalkParams as FsWalkParams
    from execserver.protocol.files import FsWalkResponse as FsWalkResponse
    from execserver.protocol.files import FsWatchMissingParams as FsWatchMissingParams
    from execserver.protocol.files import FsWatchMissingResponse as FsWatchMissingResponse
    from execserver.protocol.files import FsWriteBlockParams as FsWriteBlockParams
    from execserver.protocol.files import FsWriteBlockResponse as FsWriteBlockResponse
    from execserver.protocol.files import FsWriteFileParams as FsWriteFileParams
    from execserver.protocol.files import FsWriteFileResponse as FsWriteFileResponse
    from execserver.protocol.http import HttpHeader as HttpHeader
    from execserver.protocol.http import HttpRedirectPolicy as HttpRedirectPolicy
    from execserver.protocol.http import HttpRequestBodyDeltaNotification as HttpRequestBodyDeltaNotification
    from execserver.protocol.http import HttpRequestParams as HttpRequestParams
    from execserver.protocol.http import HttpRequestResponse as HttpRequestResponse
    from execserver.protocol.legacy import CommandExecExitedNotification as CommandExecExitedNotification
    from execserver.protocol.legacy import (
        CommandExecOutputDeltaNotification as CommandExecOutputDeltaNotification,
    )
    from execserver.protocol.legacy import CommandExecParams as CommandExecParams
    from execserver.protocol.legacy import CommandExecResponse as CommandExecResponse
    from execserver.protocol.legacy import CommandExecTerminateParams as CommandExecTerminateParams
    from execserver.protocol.legacy import CommandExecTerminateResponse as CommandExecTerminateResponse
    from execserver.protocol.legacy import CommandExecWriteParams as CommandExecWriteParams
    from execserver.protocol.legacy import CommandExecWriteResponse as CommandExecWriteResponse
    from execserver.protocol.network import CredentialAuth as CredentialAuth
    from execserver.protocol.network import CredentialProviderConfig as CredentialProviderConfig
    from execserver.protocol.network import DomainPermission as DomainPermission
    from execserver.protocol.network import NetworkAuditMetadata as NetworkAuditMetadata
    from execserver.protocol.network import NetworkMode as NetworkMode
    from execserver.protocol.network import NetworkPolicyDecisionAnswer as NetworkPolicyDecisionAnswer
    from execserver.protocol.network import (
        NetworkPolicyDecisionNotification as NetworkPolicyDecisionNotification,
    )
    from execserver.protocol.network import NetworkPolicyDestination as NetworkPolicyDestination
    from execserver.protocol.network import NetworkPolicyRequestParams as NetworkPolicyRequestParams
    from execserver.protocol.network import NetworkPolicyResponse as NetworkPolicyResponse
    from execserver.protocol.network import NetworkProxyConfig as NetworkProxyConfig
    from execserver.protocol.network import NetworkProxyLaunch as NetworkProxyLaunch
    from execserver.protocol.network import UnixSocketPermission as UnixSocketPermission
    from execserver.protocol.permissions import PermissionProfile as PermissionProfile
    from execserver.protocol.permissions import SandboxEntry as SandboxEntry
    from execserver.protocol.ports import ListeningPort as ListeningPort
    from execserver.protocol.ports import PortAcceptedNotification as PortAcceptedNotification
    from execserver.protocol.ports import PortAckParams as PortAckParams
    from execserver.protocol.ports import PortAddress as PortAddress
    from execserver.protocol.ports import PortClosedNotification as PortClosedNotification
    from execserver.protocol.ports import PortConnectParams as PortConnectParams
    from execserver.protocol.ports import PortDataNotification as PortDataNotification
    from execserver.protocol.ports import PortDataParams as PortDataParams
    from execserver.protocol.ports import PortEmptyResponse as PortEmptyResponse
    from execserver.protocol.ports import PortIdParams as PortIdParams
    from execserver.protocol.ports import PortListenResponse as PortListenResponse
    from execserver.protocol.ports import PortListResponse as PortListResponse
    from execserver.protocol.ports import PortOpenParams as PortOpenParams
    from execserver.protocol.ports import PortOpenResponse as PortOpenResponse
    from execserver.protocol.ports import PortReceivedResponse as PortReceivedResponse
    from execserver.protocol.ports import PortStreamEntry as PortStreamEntry
    from execserver.protocol.process import CloseStdinParams as CloseStdinParams
    from execserver.protocol.process import CloseStdinResponse as CloseStdinResponse
    from execserver.protocol.process import ExecClosedNotification as ExecClosedNotification
    from execserver.protocol.process import ExecEnvPolicy as ExecEnvPolicy
    from execserver.protocol.process import ExecEnvPolicyInherit as ExecEnvPolicyInherit
    from execserver.protocol.process import ExecExitedNotification as ExecExitedNotification
    from execserver.protocol.process import ExecMetadata as ExecMetadata
    from execserver.protocol.process import ExecOutputDeltaNotification as ExecOutputDeltaNotification
    from execserver.protocol.process import ExecOutputStream as ExecOutputStream
    from execserver.protocol.process import ExecParams as ExecParams
    from execserver.protocol.process import ExecResponse as ExecResponse
    from execserver.protocol.process import ExecSandboxType as ExecSandboxType
    from execserver.protocol.process import ManagedNetworkSandboxContext as ManagedNetworkSandboxContext
    from execserver.protocol.process import ProcessListEntry as ProcessListEntry
    from execserver.protocol.process import ProcessListResponse as ProcessListResponse
    from execserver.protocol.process import ProcessOutputChunk as ProcessOutputChunk
    from execserver.protocol.process import ProcessSignal as ProcessSignal
    from execserver.protocol.process import ReadParams as ReadParams
    from execserver.protocol.process import ReadResponse as ReadResponse
    from execserver.protocol.process import RecordedStreams as RecordedStreams
    from execserver.protocol.process import ResizeParams as ResizeParams
    from execserver.protocol.process import ResizeResponse as ResizeResponse
    from execserver.protocol.process import SessionIdentity as SessionIdentity
    from execserver.protocol.process import ShellSnapshotRequest as ShellSnapshotRequest
    from execserver.protocol.process import SignalParams as SignalParams
    from execserver.protocol.process import SignalResponse as SignalResponse
    from execserver.protocol.process import TerminateParams as TerminateParams
    from execserver.protocol.process import TerminateResponse as TerminateResponse
    from execserver.protocol.process import WriteParams as WriteParams
    from execserver.protocol.process import WriteResponse as WriteResponse
    from execserver.protocol.process import WriteStatus as WriteStatus
    from execserver.protocol.resource_limits import EndCause as EndCause
    from execserver.protocol.resource_limits import LimitEnforcement as LimitEnforcement
    from execserver.protocol.resource_limits import ProcessEnd as ProcessEnd
    from execserver.protocol.resource_limits import ResourceLimits as ResourceLimits
    from execserver.protocol.resource_limits import ResourceUsage as ResourceUsage
    from execserver.protocol.sandbox import FileSystemSandboxContext as FileSystemSandboxContext
    from execserver.protocol.sandbox import PolicyContext as PolicyContext
    from execserver.protocol.session import InitializedNotification as InitializedNotification
    from execserver.protocol.session import InitializeParams as InitializeParams
    from execserver.protocol.session import InitializeResponse as InitializeResponse
    from execserver.protocol.session import KeptSession as KeptSession
    from execserver.protocol.session import NoParams as NoParams
    from execserver.protocol.session import SessionEndParams as SessionEndParams
    from execserver.protocol.session import SessionEndResponse as SessionEndResponse
    from execserver.protocol.session import SessionKeepParams as SessionKeepParams
    from execserver.protocol.session import SessionListEntry as SessionListEntry
    from execserver.protocol.session import SessionListResponse as SessionListResponse
    from execserver.protocol.trees import ArchivePosition as ArchivePosition
    from execserver.protocol.trees import ExtractPosition as ExtractPosition
    from execserver.protocol.trees import FsArchiveParams as FsArchiveParams
    from execserver.protocol.trees import FsArchiveResponse as FsArchiveResponse
    from execserver.protocol.trees import FsExtractParams as FsExtractParams
    from execserver.protocol.trees import FsExtractResponse as FsExtractResponse
    from execserver.protocol.trees import FsGlobParams as FsGlobParams
    from execserver.protocol.trees import FsGlobResponse as FsGlobResponse
    from execserver.protocol.trees import FsHashEntry as FsHashEntry
    from execserver.protocol.trees import FsHashParams as FsHashParams
    from execserver.protocol.trees import FsHashResponse as FsHashResponse
    from execserver.protocol.trees import FsSearchMatch as FsSearchMatch
    from execserver.protocol.trees import FsSearchParams as FsSearchParams
    from execserver.protocol.trees import FsSearchResponse as FsSearchResponse
    from execserver.protocol.watching import GapNotification as GapNotification
    from execserver.protocol.watching import LogChunk as LogChunk
    from execserver.protocol.watching import LogParams as LogParams
    from execserver.protocol.watching import LogResponse as LogResponse
    from execserver.protocol.watching import SessionProcess as SessionProcess
    from execserver.protocol.watching import SessionProcessesResponse as SessionProcessesResponse
    from execserver.protocol.watching import TakenNotification as TakenNotification
    from execserver.protocol.watching import TakeParams as TakeParams
    from execserver.protocol.watching import TakeResponse as TakeResponse
    from execserver.protocol.watching import UnwatchParams as UnwatchParams
    from execserver.protocol.watching import UnwatchResponse as UnwatchResponse
    from execserver.protocol.watching import WatchProcessParams as WatchProcessParams
    from execserver.protocol.watching import WatchProcessResponse as WatchProcessResponse
else:
    _RECORD_MODULES = (
        "batches",
        "changes",
        "discovery",
        "environment",
        "files",
        "http",
        "legacy",
        "network",
        "permissions",
        "ports",
        "process",
        "resource_limits",
        "sandbox",
        "session",
        "trees",
        "file_watches",
        "watching",
    )

    def __getattr__(name: str) -> object:
        """Find a record by its name.  A name in lower case may be a submodule, and loads nothing."""
        if name[:1].isupper():
            from importlib import import_module

            for module_name in _RECORD_MODULES:
                module = import_module(f"{__name__}.{module_name}")
                if name in vars(module):
                    return vars(module)[name]
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

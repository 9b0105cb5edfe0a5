"""The `-c key=value` option: which fields `--strict-config` accepts (wire contract, section 1).

This server reads no client configuration, so an override never has an effect here.  Callers that share a
command line between programs may still pass it, and `--strict-config` reports misspelt names.
"""

from __future__ import annotations

# The top-level fields of the reference server; what is below them is not checked.
_NAMES = """
agents allow_login_shell analytics approval_policy approvals_reviewer apps audio auto_review
background_terminal_max_timeout chatgpt_base_url check_for_update_on_startup cli_auth_credentials_store
compact_prompt debug default_permissions desktop developer_instructions disable_paste_burst
experimental_compact_prompt_file experimental_realtime_ws_base_url experimental_thread_config_endpoint
experimental_thread_store experimental_use_unified_exec_tool features feedback file_opener
forced_chatgpt_workspace_id forced_login_method ghost_snapshot hide_agent_reasoning history hooks
include_apps_instructions include_environment_context include_permissions_instructions instructions
js_repl_node_module_dirs js_repl_node_path log_dir marketplaces mcp_oauth_callback_port
mcp_oauth_callback_url mcp_oauth_credentials_store mcp_servers memories model
model_auto_compact_token_limit model_catalog_json model_context_window model_instructions_file
model_provider model_providers model_reasoning_effort model_reasoning_summary
model_supports_reasoning_summaries model_verbosity notice notify openai_base_url orchestrator
oss_provider otel permissions personality plan_mode_reasoning_effort plugins profile profiles
project_doc_fallback_filenames project_doc_max_bytes project_root_markers projects realtime review_model
sandbox_mode sandbox_workspace_write service_tier shell_environment_policy show_raw_agent_reasoning
skills sqlite_home suppress_unstable_features_warning tool_output_token_limit tool_suggest tools tui
web_search windows
"""
KNOWN_FIELDS = frozenset(_NAMES.split())


class ConfigOverrideError(ValueError):
    """An override that `--strict-config` refuses; the text is for the user."""


def check_overrides(overrides: list[str]) -> None:
    """Raise ConfigOverrideError for the first override without `=`, without key or with an unknown field."""
    for override in overrides:
        key, equals, _ = override.partition("=")
        if not equals:
            raise ConfigOverrideError(f"Invalid override (missing '='): {override}")
        field = key.strip().partition(".")[0]
        if not field:
            raise ConfigOverrideError(f"Empty key in override: {override}")
        if field not in KNOWN_FIELDS:
            raise ConfigOverrideError(f"unknown configuration field `{field}` in -c/--config override")

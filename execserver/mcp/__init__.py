"""The shell tool: an MCP server with one tool, its rules, its prompts and its calls."""

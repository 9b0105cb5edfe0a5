"""The shell tool: an MCP server with one tool, its exec rules, its approval prompts and its calls."""

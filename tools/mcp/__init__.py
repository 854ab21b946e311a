"""Tools of MCP servers, for any environment."""

"""What an agent can use: the tool box, Python, shell and file tools, search, MCP."""

"""Small programming problems: statement, reference solution, and how to draw inputs."""

"""Small repositories with a bug in them, for repo-fix."""

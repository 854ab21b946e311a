"""Sandboxes without a container engine: namespaces of Linux, made by bubblewrap."""

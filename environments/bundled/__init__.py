"""The environments that ship with the library."""

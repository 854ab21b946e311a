"""What tests of a cluster share."""

from tests.ray_machines import machines

__all__ = ["machines"]

"""Rows of SWE-bench and its relatives."""

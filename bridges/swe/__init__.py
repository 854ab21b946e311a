"""Rows of SWE-bench and similar datasets."""

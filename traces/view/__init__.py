"""Traces that people can read: one HTML file that opens offline, or plain text in a terminal."""

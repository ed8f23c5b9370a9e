"""Figures, not tests: each module here prints a table and ends in one JSON line."""

"""Weights files: their headers, their layouts, and their way into a model."""

"""Weights files: their header, their layouts, and how they fill a model."""

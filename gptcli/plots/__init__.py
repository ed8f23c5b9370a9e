"""Plots: figures for files, and drawings for the terminal."""

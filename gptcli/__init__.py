"""A from-scratch PyTorch GPT-2 on the command line."""

__version__ = "0.1.0"

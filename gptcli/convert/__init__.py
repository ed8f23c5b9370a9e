"""Conversion of checkpoints, pickles among them, into folders of safetensors; `python -m gptcli.convert`."""

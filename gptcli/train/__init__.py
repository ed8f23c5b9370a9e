"""Training: from text files to a folder that `gptcli generate --weights` can load."""

"""Decoding: from the prompt's token ids to new token ids, and from ids to text."""

"""Text to ids and back: GPT-2's own tokenizer, or the one in the files next to a model's weights."""

from gptcli.tokenizer.gpt2 import END_OF_TEXT, gpt2_encoding, read_ranks
from gptcli.tokenizer.tokenizer import Encoding, Tokenizer

__all__ = ["END_OF_TEXT", "Encoding", "Tokenizer", "gpt2_encoding", "read_ranks"]

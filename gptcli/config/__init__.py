"""What a model is, in plain Python: its config, and what follows from it without loading anything."""

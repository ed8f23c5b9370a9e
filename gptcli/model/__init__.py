"""The model: embeddings, blocks, head, and the cache that it takes as an argument."""

"""The model: embeddings, blocks and head, and the key/value cache that its forward pass takes."""

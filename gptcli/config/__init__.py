"""The config of a model and all that follows from it alone: shapes, costs, shards. Plain Python."""

"""A short text that tells one checkpoint from another."""

import hashlib

from gptcli.weights.header import Checkpoint, TensorInfo

# Bytes of each tensor that count, at its beginning and at its end: two trainings differ everywhere.
COMPARED_BYTES = 4096


def fingerprint(checkpoint: Checkpoint) -> str:
    """Return a hash of a weights file's header and of a few bytes of each tensor."""
    digest = hashlib.sha256()
    for name, tensor in sorted(checkpoint.tensors.items()):
        digest.update(repr((name, tensor.dtype, tensor.shape)).encode())
        digest.update(_first_and_last_bytes(tensor))
    return digest.hexdigest()


def _first_and_last_bytes(tensor: TensorInfo) -> bytes:
    with tensor.file.open("rb") as file:
        file.seek(tensor.data_start + tensor.begin)
        beginning = file.read(min(COMPARED_BYTES, tensor.n_bytes))
        file.seek(tensor.data_start + max(tensor.begin, tensor.end - COMPARED_BYTES))
        return beginning + file.read(min(COMPARED_BYTES, tensor.n_bytes))

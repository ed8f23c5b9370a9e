"""New safetensors files, written tensor by tensor: one, or shards with their index."""

import json
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from gptcli.config.dtypes import DTYPES
from gptcli.convert.plan import OutputTensor
from gptcli.errors import ResourceError
from gptcli.weights.folders import INDEX, SINGLE

ALIGNMENT = 8  # bytes that a header's length is a multiple of, as safetensors writes it
METADATA = {"format": "pt"}  # without it transformers refuses the file


@dataclass(frozen=True)
class OutputFile:
    """One new file and the tensors in it."""

    name: str
    tensors: tuple[OutputTensor, ...]

    @property
    def n_bytes(self) -> int:
        """Bytes of its tensors."""
        return sum(tensor.n_bytes for tensor in self.tensors)


def split_into_files(tensors: Sequence[OutputTensor], max_bytes: int) -> list[OutputFile]:
    """Distribute tensors over as few files as hold at most `max_bytes` each, in order; one may be larger."""
    # The widest numbers come first in a file, so that each tensor begins at a multiple of its own size.
    groups: list[list[OutputTensor]] = [[]]
    filled = 0
    for tensor in tensors:
        if groups[-1] and filled + tensor.n_bytes > max_bytes:
            groups.append([])
            filled = 0
        groups[-1].append(tensor)
        filled += tensor.n_bytes
    by_width = [sorted(group, key=lambda t: -DTYPES[t.dtype].n_bytes) for group in groups]
    if len(groups) == 1:
        return [OutputFile(SINGLE, tuple(by_width[0]))]
    return [
        OutputFile(f"model-{number:05}-of-{len(groups):05}.safetensors", tuple(group))
        for number, group in enumerate(by_width, 1)
    ]


def write_folder(
    folder: Path, files: Sequence[OutputFile], config: str, advance: Callable[[int], None]
) -> None:
    """Write the files, their index and `config.json`; none of them appears before all are written.

    `advance` is called with the bytes of each tensor that is written. Raises `ResourceError`.
    """
    texts = {"config.json": config}
    if len(files) > 1:
        weight_map = {tensor.name: file.name for file in files for tensor in file.tensors}
        total = sum(file.n_bytes for file in files)
        index = {"metadata": {"total_size": total}, "weight_map": weight_map}
        texts[INDEX] = json.dumps(index, indent=2) + "\n"
    needed = sum(file.n_bytes for file in files)
    if (free := shutil.disk_usage(folder).free) < needed:
        raise ResourceError(f"{folder}: needs {needed:,} bytes, and its disk has {free:,} free")
    names = [*texts, *(file.name for file in files)]
    parts = {name: folder / f".{name}.part" for name in names}
    try:
        for name, text in texts.items():
            parts[name].write_text(text, encoding="utf-8")
        for file in files:
            _write_file(parts[file.name], file, advance)
        for path in _stale_files(folder, names):
            path.unlink()
        for name in reversed(names):
            parts[name].replace(folder / name)
    except OSError as error:
        raise ResourceError(f"{folder}: cannot be written: {error.strerror}") from None
    finally:
        for part in parts.values():
            part.unlink(missing_ok=True)


def _write_file(path: Path, file: OutputFile, advance: Callable[[int], None]) -> None:
    """Write one file: the header, whose offsets the shapes give, then each tensor as it is computed."""
    header: dict[str, object] = {"__metadata__": METADATA}
    at = 0
    for tensor in file.tensors:
        end = at + tensor.n_bytes
        dtype = DTYPES[tensor.dtype].safetensors
        header[tensor.name] = {"dtype": dtype, "shape": tensor.shape, "data_offsets": [at, end]}
        at = end
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % ALIGNMENT)
    with path.open("wb") as stream:
        stream.write(len(text).to_bytes(8, "little") + text)
        for tensor in file.tensors:
            numbers = np.ascontiguousarray(tensor.compute())
            assert numbers.shape == tensor.shape
            assert numbers.nbytes == tensor.n_bytes
            stream.write(numbers.data)
            advance(tensor.n_bytes)


def _stale_files(folder: Path, names: Sequence[str]) -> Iterator[Path]:
    """Yield the weights of an older model in the folder that the new ones do not replace."""
    for path in (*folder.glob("model-*-of-*.safetensors"), folder / SINGLE, folder / INDEX):
        if path.name not in names and path.is_file():
            yield path

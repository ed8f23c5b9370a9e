"""The views of `inspect` and `params`: each has a text, a document for `--json`, and some have a picture."""

from typing import Any, Protocol


class View(Protocol):
    """An answer of `inspect`.

    A `fault` is the error with which the command ends with status 1, after it has printed the answer.
    """

    @property
    def fault(self) -> str | None: ...

    def as_text(self) -> str: ...

    def as_json(self) -> Any: ...


class PictureView(View, Protocol):
    """A view that can be drawn, as `png`, `svg` or `pdf`."""

    def picture(self, file_format: str) -> bytes: ...

"""What `inspect` can show: each view has a text, a document for `--json`, and some of them a picture."""

from typing import Any, Protocol


class View(Protocol):
    """One answer of `inspect`; `fault` is why the command ends with status 1, after it has answered."""

    @property
    def fault(self) -> str | None: ...

    def as_text(self) -> str: ...

    def as_json(self) -> Any: ...


class PictureView(View, Protocol):
    """A view that can be drawn."""

    def picture(self, file_format: str) -> bytes: ...

"""Jobs that the first process reads and all of them get."""

from typing import Generic, TypeVar

from gptcli.cli.read_ahead import ReadAhead
from gptcli.parallel.process_group import ProcessGroup

T = TypeVar("T")


class SharedJobs(Generic[T]):
    """`ReadAhead` for several processes: when and what is read must be the same for all of them."""

    def __init__(self, own: ReadAhead[T], group: ProcessGroup) -> None:
        """`own` is read in the first process alone."""
        self._own, self._group = own, group
        self.ended = False

    def next(self, timeout_seconds: float | None) -> T | None:
        """The next item; None when none came in time, or `ended`."""
        item = self._own.next(timeout_seconds) if self._group.is_first else None
        item, self.ended = self._group.broadcast_object((item, self._own.ended))
        return item

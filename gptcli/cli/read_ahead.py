"""Reading that does not wait: a pipe may give its next line in an hour, and there is work to do meanwhile."""

import queue
import threading
from collections.abc import Iterable
from contextlib import suppress
from typing import Generic, TypeVar

T = TypeVar("T")


class _End:
    """The source has no more, or failed."""

    def __init__(self, error: BaseException | None = None) -> None:
        self.error = error


class ReadAhead(Generic[T]):
    """Takes from `source` in a thread of its own, up to `limit` items ahead."""

    def __init__(self, source: Iterable[T], limit: int) -> None:
        self._queue: queue.Queue[T | _End] = queue.Queue(limit)
        self._closed = threading.Event()
        self.ended = False
        # A daemon: a pipe that never ends must not keep the process.
        threading.Thread(target=self._read, args=(source,), daemon=True).start()

    def next(self, timeout_seconds: float | None) -> T | None:
        """The next item; None when none came in time, or `ended`. An error of the source is raised here."""
        if self.ended:
            return None
        try:
            item = self._queue.get(timeout=timeout_seconds)
        except queue.Empty:
            return None
        if isinstance(item, _End):
            self.ended = True
            if item.error is not None:
                raise item.error
            return None
        return item

    def close(self) -> None:
        """Read no further."""
        self._closed.set()

    def _read(self, source: Iterable[T]) -> None:
        try:
            for item in source:
                self._put(item)
                if self._closed.is_set():
                    return
        except BaseException as error:
            self._put(_End(error))
        else:
            self._put(_End())

    def _put(self, item: T | _End) -> None:
        """Wait for room, as long as somebody may make some."""
        while not self._closed.is_set():
            with suppress(queue.Full):
                self._queue.put(item, timeout=0.2)
                return

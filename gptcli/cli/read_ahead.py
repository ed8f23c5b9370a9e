"""Reading ahead in a thread: a pipe may give its next line in an hour, and there is work to do meanwhile."""

import queue
import threading
from collections.abc import Iterable
from contextlib import suppress
from typing import Generic, TypeVar

T = TypeVar("T")


class _End:
    """The end of the source, with the error if it failed."""

    def __init__(self, error: BaseException | None = None) -> None:
        self.error = error


class ReadAhead(Generic[T]):
    """The items of `source`, read by a thread of its own, up to `limit` items ahead."""

    def __init__(self, source: Iterable[T], limit: int) -> None:
        self._queue: queue.Queue[T | _End] = queue.Queue(limit)
        self._closed = threading.Event()
        self.ended = False
        # A daemon thread, because a pipe that never ends must not keep the process alive.
        threading.Thread(target=self._read, args=(source,), daemon=True).start()

    def next(self, timeout_seconds: float | None) -> T | None:
        """Return the next item; None if none came in time, or if the source has `ended`.

        Raises the error that ended the source.
        """
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
        """Stop reading."""
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
        """Put an item into the queue; wait while it is full and the reader is not closed."""
        while not self._closed.is_set():
            with suppress(queue.Full):
                self._queue.put(item, timeout=0.2)
                return

"""Streaming text from the bytes of tokens: whole characters, and no part of a stop string."""

import codecs
from collections.abc import Sequence


class TextStream:
    """Decodes tokens one by one, and returns text as soon as it is certain.

    It holds back the bytes of an incomplete character, and text that may be the beginning of a stop string.
    All returned pieces together are the decoded text up to the first stop string.
    """

    def __init__(self, stops: Sequence[str] = ()) -> None:
        self._stops = tuple(stops)
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._held = ""
        self.stopped = False

    def feed(self, token: bytes) -> str:
        """Return the text that becomes certain with the bytes `token`; nothing after a stop string."""
        return self._release(self._decoder.decode(token), final=False)

    def close(self) -> str:
        """Return the text that is still held back, after the last token."""
        return self._release(self._decoder.decode(b"", final=True), final=True)

    def _release(self, text: str, final: bool) -> str:
        if self.stopped:
            return ""
        text = self._held + text
        found = [at for stop in self._stops if (at := text.find(stop)) >= 0]
        if found:
            self.stopped, self._held = True, ""
            return text[: min(found)]
        keep = 0 if final else self._partial_stop_length(text)
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep]

    def _partial_stop_length(self, text: str) -> int:
        """Return the length of the longest end of `text` that is the beginning of a stop string."""
        longest = max((len(stop) for stop in self._stops), default=1) - 1
        for n in range(min(longest, len(text)), 0, -1):
            if any(stop.startswith(text[-n:]) for stop in self._stops):
                return n
        return 0

"""From token bytes to text as it streams: whole characters only, and nothing of a stop string."""

import codecs
from collections.abc import Sequence


class TextStream:
    """Takes the bytes of one token after another and gives the text that is certain by then.

    Held back are the bytes of a character that is not whole yet, and text that may be the beginning of a stop
    string. What was given, joined, is the decoded whole up to the first stop string.
    """

    def __init__(self, stops: Sequence[str] = ()) -> None:
        self._stops = tuple(stops)
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._held = ""
        self.stopped = False

    def feed(self, token: bytes) -> str:
        """The text that becomes certain with `token`; after `stopped` there is none."""
        return self._release(self._decoder.decode(token), final=False)

    def close(self) -> str:
        """What was still held when the tokens ended."""
        return self._release(self._decoder.decode(b"", final=True), final=True)

    def _release(self, text: str, final: bool) -> str:
        if self.stopped:
            return ""
        text = self._held + text
        found = [at for stop in self._stops if (at := text.find(stop)) >= 0]
        if found:
            self.stopped, self._held = True, ""
            return text[: min(found)]
        keep = 0 if final else self._beginning_of_stop(text)
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep]

    def _beginning_of_stop(self, text: str) -> int:
        """Length of the longest end of `text` that some stop string begins with."""
        longest = max((len(stop) for stop in self._stops), default=1) - 1
        for n in range(min(longest, len(text)), 0, -1):
            if any(stop.startswith(text[-n:]) for stop in self._stops):
                return n
        return 0

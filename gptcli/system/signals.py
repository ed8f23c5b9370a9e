"""What Ctrl-C (SIGINT) and SIGTERM do: end a process that is starting, unwind one that has begun to answer.

An exception in the midst of importing torch or NumPy comes out as anything, an abort among others. Nothing is
lost by ending there; later, files get closed and what was printed gets its newline.
"""

import os
import signal
from types import FrameType
from typing import NoReturn

EXIT_INTERRUPTED, EXIT_TERMINATED = 130, 143


class Terminated(BaseException):
    """SIGTERM, raised where the program stands so that what is open gets closed."""


def end_at_once() -> None:
    """From now on a signal ends the process with its exit status."""
    signal.signal(signal.SIGINT, _end)
    signal.signal(signal.SIGTERM, _end)


def unwind() -> None:
    """From now on, where `end_at_once` held, a signal is an exception: an answer has begun."""
    if signal.getsignal(signal.SIGINT) is _end:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.signal(signal.SIGTERM, _terminate)


def ignore_termination() -> None:
    """From now on SIGTERM does nothing: what is being said is the last thing before the end anyway."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)


def _end(number: int, _frame: FrameType | None) -> NoReturn:
    os._exit(EXIT_INTERRUPTED if number == signal.SIGINT else EXIT_TERMINATED)


def _terminate(_number: int, _frame: FrameType | None) -> NoReturn:
    raise Terminated

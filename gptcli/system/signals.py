"""Handlers for Ctrl-C (SIGINT) and SIGTERM: exit while the program starts, raise once it has begun to answer.

While torch or NumPy is being imported, an exception in a signal handler can surface as any error, even an
abort. Nothing is lost by exiting at that point. Later, open files are closed and the printed text gets its
newline.
"""

import os
import signal
from types import FrameType
from typing import NoReturn

EXIT_INTERRUPTED, EXIT_TERMINATED = 130, 143


class Terminated(BaseException):
    """SIGTERM, raised wherever the program is, so that open files are closed."""


def exit_on_signal() -> None:
    """Make SIGINT and SIGTERM end the process at once, with the exit status of the signal."""
    signal.signal(signal.SIGINT, _exit)
    signal.signal(signal.SIGTERM, _exit)


def raise_on_signal() -> None:
    """Make SIGINT and SIGTERM raise an exception, if `exit_on_signal` was in force: an answer has begun."""
    if signal.getsignal(signal.SIGINT) is _exit:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.signal(signal.SIGTERM, _raise_terminated)


def ignore_sigterm() -> None:
    """Ignore SIGTERM: the process is printing its last message and ends anyway."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)


def _exit(number: int, _frame: FrameType | None) -> NoReturn:
    os._exit(EXIT_INTERRUPTED if number == signal.SIGINT else EXIT_TERMINATED)


def _raise_terminated(_number: int, _frame: FrameType | None) -> NoReturn:
    raise Terminated

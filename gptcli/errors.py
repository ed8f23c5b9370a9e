"""The exceptions for all foreseeable faults, as one tree; each class has its exit status.

    GptcliError            1   impossible with this file, device, disk or memory
    ├── WeightsError       1   a weights file is missing, corrupt, or contradicts the preset
    ├── DeviceError        1   a device that this machine does not have
    ├── ResourceError      1   not enough memory, or an output that cannot be written
    ├── NumericsError      1   the model's logits are not finite
    └── UsageError         2   wrong by the command line, prompt or config alone
        └── ConfigError    2   an unknown preset, or an invalid config

The command line turns them into one message and the exit status, in one place (`cli/boundary.py`).
"""


def count(n: int, noun: str) -> str:
    """Return a number with its noun, for messages: `1 head`, `2,048 heads`."""
    return f"{n:,} {noun}" if n == 1 else f"{n:,} {noun}s"


def as_given(number: float) -> str:
    """Return a number for messages, with all of its digits: `1.0000001`, `-1`, `nan`."""
    return repr(number).removesuffix(".0")


class GptcliError(Exception):
    """A foreseeable fault; its message names the value, what was expected, and what to do."""

    exit_status = 1


class WeightsError(GptcliError):
    """A weights file is missing, corrupt, of an unknown layout, or contradicts the requested model."""


class DeviceError(GptcliError):
    """The requested device does not exist on this machine."""


class ResourceError(GptcliError):
    """Not enough memory or disk, or an output path that cannot be written."""


class NumericsError(GptcliError):
    """The model computed something that is not a finite number."""


class UsageError(GptcliError):
    """The command line, prompt or config alone shows that the request is wrong."""

    exit_status = 2


class ConfigError(UsageError):
    """An unknown preset, or an invalid config."""

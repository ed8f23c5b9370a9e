"""Everything foreseeable that can go wrong, as one tree; each kind knows its exit status.

    GptcliError            1   what a file, device, disk or memory shows to be impossible
    ├── WeightsError       1   a weights file is missing, corrupt, or contradicts the preset
    ├── DeviceError        1   a device that this machine does not have
    ├── ResourceError      1   not enough memory, or an output that cannot be written
    ├── NumericsError      1   the model's logits are not finite
    └── UsageError         2   what the command line, prompt and config alone show to be wrong
        └── ConfigError    2   a preset or config that cannot be

The command line turns them into one message and the exit status, in one place (`cli/app.py`).
"""


class GptcliError(Exception):
    """A foreseeable fault; its text names the value, what was expected, and what to do."""

    exit_status = 1


class WeightsError(GptcliError):
    """A weights file is missing, corrupt, of an unknown layout, or contradicts the model asked for."""


class DeviceError(GptcliError):
    """The device asked for does not exist on this machine."""


class ResourceError(GptcliError):
    """Not enough memory or disk, or an output path that cannot be written."""


class NumericsError(GptcliError):
    """The model computed something that is not a finite number."""


class UsageError(GptcliError):
    """The command line, prompt or config alone shows that the request is wrong."""

    exit_status = 2


class ConfigError(UsageError):
    """A preset name or config that cannot be."""

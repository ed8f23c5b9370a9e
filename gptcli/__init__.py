"""A GPT-2 from scratch in PyTorch, on the command line and from Python: `load_model`, `generate`."""

from gptcli.version import __version__

TYPE_CHECKING = False  # the name that type checkers know; importing typing takes 5 ms
if TYPE_CHECKING:
    from gptcli.api import generate, load_model

__all__ = ["__version__", "generate", "load_model"]


def __getattr__(name: str) -> object:
    """Import the API only when it is used."""
    if name in ("generate", "load_model"):
        from gptcli import api

        return getattr(api, name)
    raise AttributeError(f"module 'gptcli' has no attribute {name!r}")

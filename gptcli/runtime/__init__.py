"""From a model source to a loaded model with its engine: weights, device, dtype, memory."""

from gptcli.runtime.load import load
from gptcli.runtime.loaded_model import LoadedModel

__all__ = ["LoadedModel", "load"]

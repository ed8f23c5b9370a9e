"""The one way from a model, a prompt and options to tokens and text. Nothing here prints.

model = load_model("gpt2/")
print(generate(model, "Hello, I am", max_new_tokens=20).text)
for piece in stream(model, "Hello, I am"):
    print(piece, end="")
for result in generate_batch(model, ["Hello, I am", "Once upon"], batch_size=2):
    print(result.output.text)
"""

from gptcli.api.batch import PromptRecord, PromptSource, Result, fitting_batch_size, generate_batch
from gptcli.api.generate import Generation, StreamedToken, generate, stream, stream_tokens
from gptcli.api.load import join_processes, load, load_model
from gptcli.api.output import CompletionOutput, RequestOutput
from gptcli.decode.options import GenerationOptions
from gptcli.decode.request import DecodeRequest, prepare_request
from gptcli.weights.source import ModelSource, select_source

TYPE_CHECKING = False
if TYPE_CHECKING:  # it imports torch
    from gptcli.runtime import LoadedModel

__all__ = [
    "CompletionOutput",
    "DecodeRequest",
    "Generation",
    "GenerationOptions",
    "LoadedModel",
    "ModelSource",
    "PromptRecord",
    "PromptSource",
    "RequestOutput",
    "Result",
    "StreamedToken",
    "fitting_batch_size",
    "generate",
    "generate_batch",
    "join_processes",
    "load",
    "load_model",
    "prepare_request",
    "select_source",
    "stream",
    "stream_tokens",
]


def __getattr__(name: str) -> object:
    """Import the class of loaded models, and torch with it, when it is asked for."""
    if name == "LoadedModel":
        from gptcli.runtime import LoadedModel

        return LoadedModel
    raise AttributeError(f"module 'gptcli.api' has no attribute {name!r}")

"""From a model, a prompt and options to tokens and text. Nothing here prints.

model = load_model("gpt2/")
print(generate(model, "Hello, I am", max_new_tokens=20).text)
for piece in stream(model, "Hello, I am"):
    print(piece, end="")
for result in generate_batch(model, ["Hello, I am", "Once upon"], batch_size=2):
    print(result.output.text)
print(score_text(model, "Hello, I am a model.").perplexity)
"""

from gptcli.api.batch import PromptRecord, PromptSource, Result, fitting_batch_size, generate_batch
from gptcli.api.generate import Generation, StreamedToken, generate, stream, stream_tokens
from gptcli.api.load import exit_on_bus_error, is_first_to_fail, join_processes, load, load_model
from gptcli.api.output import CompletionOutput, RequestOutput
from gptcli.decode.options import GenerationOptions
from gptcli.decode.request import DecodeRequest, prepare_request
from gptcli.weights.source import ModelSource, select_source

TYPE_CHECKING = False
if TYPE_CHECKING:  # imported when they are used: some need torch, and `generate` needs no scores
    from gptcli.api.score import TextScore, TokenScore, score_text, score_texts, score_tokens
    from gptcli.parallel.process_group import ProcessGroup
    from gptcli.runtime import LoadedModel

_LAZY = {
    "LoadedModel": "gptcli.runtime",
    "ProcessGroup": "gptcli.parallel.process_group",
    **dict.fromkeys(
        ("TextScore", "TokenScore", "score_text", "score_texts", "score_tokens"), "gptcli.api.score"
    ),
}

__all__ = [
    "CompletionOutput",
    "DecodeRequest",
    "Generation",
    "GenerationOptions",
    "LoadedModel",
    "ModelSource",
    "ProcessGroup",
    "PromptRecord",
    "PromptSource",
    "RequestOutput",
    "Result",
    "StreamedToken",
    "TextScore",
    "TokenScore",
    "exit_on_bus_error",
    "fitting_batch_size",
    "generate",
    "generate_batch",
    "is_first_to_fail",
    "join_processes",
    "load",
    "load_model",
    "prepare_request",
    "score_text",
    "score_texts",
    "score_tokens",
    "select_source",
    "stream",
    "stream_tokens",
]


def __getattr__(name: str) -> object:
    """Import what is not always needed only when it is used."""
    if name in _LAZY:
        from importlib import import_module

        return getattr(import_module(_LAZY[name]), name)
    raise AttributeError(f"module 'gptcli.api' has no attribute {name!r}")

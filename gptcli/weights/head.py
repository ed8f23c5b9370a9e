"""A file's output head: it may be missing, equal to the token embedding, or not meant to be used."""

from collections.abc import Callable
from typing import Any

from gptcli.config.model_config import ModelConfig
from gptcli.weights.plan import LoadPlan

HEAD, EMBEDDING = "out_head.weight", "tok_emb.weight"


def resolve_head(
    plan: LoadPlan,
    parameters: dict[str, Any],
    *,
    equal: Callable[[Any, Any], bool],
    agree: Callable[[bool], bool] = bool,
) -> tuple[ModelConfig, tuple[str, ...]]:
    """Remove an unused head from `parameters`; return the config, tied or not, and notes for the user.

    `equal` compares two parameters. They may be one rank's shards of head and embedding: then `agree` is
    given whether these are equal, and returns whether they are equal on all ranks.
    """
    config = plan.config
    if plan.head_is_embedding:
        parameters[EMBEDDING] = parameters.pop(HEAD)
    if plan.head in ("embedding", "own"):
        return config, ()
    is_equal = agree(equal(parameters[HEAD], parameters[EMBEDDING]))
    if plan.head == "unused":
        del parameters[HEAD]
        note = "the file's head differs from the token embedding and is not used: config.json ties them"
        return config, () if is_equal else (note,)
    if not is_equal:
        return config, ()
    del parameters[HEAD]
    return config.model_copy(update={"tie_embeddings": True}), ()

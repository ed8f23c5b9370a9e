"""The logit lens: what each layer would predict if the model ended there.

Source: nostalgebraist 2020, "interpreting GPT: the logit lens". As in the model, the final norm comes before
the head, so the last row is the model's own prediction.
"""

from dataclasses import dataclass

import torch

from gptcli.explain.scoring import Candidate, top_candidates
from gptcli.explain.trace import Trace
from gptcli.model.gpt import GPTModel


@dataclass(frozen=True)
class LensRow:
    """The top tokens after a layer, which `name` calls `embedding` or `block i`."""

    name: str
    candidates: list[Candidate]


@torch.inference_mode()
def logit_lens(model: GPTModel, trace: Trace, position: int, k: int) -> list[LensRow]:
    """Return the k top next tokens for `position`, after the embedding and after each block."""
    rows = []
    for layer, residual in enumerate(trace.residual[::2]):
        logits = model.out_head(model.final_norm(residual[position]))  # [V]
        name = "embedding" if layer == 0 else f"block {layer - 1}"
        rows.append(LensRow(name, top_candidates(logits, k)))
    return rows

"""A GPTModel of which every process has its part."""

from typing import Any

from torch import Tensor

from gptcli.model.gpt import GPTModel
from gptcli.model.moe import MixtureOfExperts
from gptcli.parallel.group import Group
from gptcli.parallel.modules import (
    ExpertParallelMixture,
    RowParallelLinear,
    VocabParallelEmbedding,
    VocabParallelHead,
)


class ParallelGPTModel(GPTModel):
    """The same calls and the same results as the whole model, when all processes make the same calls.

    Column-parallel layers (query, key, value, the first of a feed-forward) need no class: with some of the
    rows of its matrix an `nn.Linear` gives some of the outputs.
    """

    def share(self, group: Group) -> None:
        """Put the layers that talk to the others over this process's parts, which the parameters are."""
        vocab = group.ranks.shard_range(self.config.vocab_size)
        self.tok_emb: Any = VocabParallelEmbedding(self.tok_emb.weight, vocab, group)
        self.out_head: Any = VocabParallelHead(self.out_head, self.config.vocab_size, group)
        for block in self.trf_blocks:
            att: Any = block.att
            att.out_proj = RowParallelLinear(att.out_proj, group)
            block.ff = _share_feed_forward(block.ff, group)

    def greedy_logits(self, hidden: Tensor) -> Tensor:  # [..., C]
        """What greedy decoding asks of the logits, without sending all of them: [..., C] → [..., V]."""
        logits: Tensor = self.out_head.greedy(hidden)  # [..., V]
        return logits


def _share_feed_forward(ff: Any, group: Group) -> Any:
    if isinstance(ff, MixtureOfExperts):
        for i, shared in enumerate(ff.shared):
            ff.shared[i] = _share_feed_forward(shared, group)
        return ExpertParallelMixture(ff, group.ranks.shard_range(len(ff.fc1)), group)
    if hasattr(ff, "down_proj"):
        ff.down_proj = RowParallelLinear(ff.down_proj, group)
    else:
        ff.layers[2] = RowParallelLinear(ff.layers[2], group)
    return ff

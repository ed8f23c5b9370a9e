"""A GPTModel that is sharded over several processes."""

from typing import Any

from torch import Tensor

from gptcli.model.gpt import GPTModel
from gptcli.model.moe import MixtureOfExperts
from gptcli.parallel.modules import (
    ExpertParallelMixture,
    RowParallelLinear,
    VocabParallelEmbedding,
    VocabParallelHead,
)
from gptcli.parallel.process_group import ProcessGroup


class ParallelGPTModel(GPTModel):
    """A model with the calls and results of the unsharded one, if all processes make the same calls.

    Column-parallel layers (query, key, value, the first of a feed-forward) need no class: an `nn.Linear` with
    some rows of the matrix computes some of the outputs.
    """

    def parallelize(self, group: ProcessGroup) -> None:
        """Wrap this process's shards, which the parameters are, in the layers that communicate."""
        tokens = group.ranks.shard_range(self.config.vocab_size)
        self.tok_emb: Any = VocabParallelEmbedding(self.tok_emb.weight, tokens, group)
        self.out_head: Any = VocabParallelHead(self.out_head, self.config.vocab_size, group)
        for block in self.trf_blocks:
            att: Any = block.att
            att.out_proj = RowParallelLinear(att.out_proj, group)
            block.ff = _parallelize_feed_forward(block.ff, group)

    def greedy_logits(self, hidden: Tensor) -> Tensor:  # [..., V]
        """Return the logits that greedy decoding needs, for `hidden` [..., C], without sending them all."""
        logits: Tensor = self.out_head.greedy(hidden)  # [..., V]
        return logits


def _parallelize_feed_forward(ff: Any, group: ProcessGroup) -> Any:
    if isinstance(ff, MixtureOfExperts):
        for i, shared in enumerate(ff.shared):
            ff.shared[i] = _parallelize_feed_forward(shared, group)
        return ExpertParallelMixture(ff, group.ranks.shard_range(len(ff.fc1)), group)
    if hasattr(ff, "down_proj"):
        ff.down_proj = RowParallelLinear(ff.down_proj, group)
    else:
        ff.layers[2] = RowParallelLinear(ff.layers[2], group)
    return ff

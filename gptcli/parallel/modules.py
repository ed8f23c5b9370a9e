"""The layers of a model that is sharded over processes: each computes what the unsharded layer would.

A column-parallel layer computes some of the outputs and needs no communication. A row-parallel layer takes
those as its inputs, and the processes add up their results. Source: Shoeybi et al. 2019, "Megatron-LM",
section 3.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gptcli.config.partition import Rank
from gptcli.engine.summary import restore, summarize
from gptcli.model.int8 import Int8Linear
from gptcli.model.moe import MixtureOfExperts
from gptcli.parallel.process_group import ProcessGroup


class RowParallelLinear(nn.Module):
    """Σ over the processes of W[:, columns]·x[columns], then the bias, which is added once."""

    def __init__(self, shard: nn.Linear | Int8Linear, group: ProcessGroup) -> None:
        """Take this process's columns of the matrix, with the whole bias."""
        super().__init__()
        self.bias, shard.bias = shard.bias, None
        self.shard, self.group = shard, group

    def forward(self, x: Tensor) -> Tensor:  # [..., O]
        """Apply the layer to x [..., I of this shard]."""
        y = self.group.all_reduce(self.shard(x))  # [..., O]
        return y if self.bias is None else y + self.bias


class VocabParallelEmbedding(nn.Module):
    """The token embedding; each process looks up its own tokens and adds zeros for the others."""

    def __init__(self, weight: nn.Parameter, tokens: range, group: ProcessGroup) -> None:
        """Take this process's rows of the embedding, those of `tokens`."""
        super().__init__()
        self.weight, self.tokens, self.group = weight, tokens, group

    def forward(self, idx: Tensor) -> Tensor:  # [B, T, C]
        """Return the embeddings of token ids [B, T]."""
        is_here = (idx >= self.tokens.start) & (idx < self.tokens.stop)  # [B, T]
        rows = F.embedding((idx - self.tokens.start).where(is_here, 0), self.weight)  # [B, T, C]
        return self.group.all_reduce(rows.where(is_here.unsqueeze(-1), 0))  # [B, T, C]


class VocabParallelHead(nn.Module):
    """The output head; each process computes the logits of its own tokens."""

    def __init__(self, shard: nn.Linear | Int8Linear, vocab_size: int, group: ProcessGroup) -> None:
        """Take this process's rows of the head; `vocab_size` counts those of all processes."""
        super().__init__()
        self.shard, self.vocab_size, self.group = shard, vocab_size, group
        size = group.ranks.world_size
        self._spans = [Rank(rank, size).shard_range(vocab_size) for rank in range(size)]

    def forward(self, x: Tensor) -> Tensor:  # [..., V]
        """Return all logits for x [..., C]."""
        widest = max(map(len, self._spans))
        logits = self.shard(x)  # [..., V of this shard]
        gathered = self.group.all_gather(F.pad(logits, (0, widest - logits.shape[-1])))
        shards = [logits[..., : len(span)] for logits, span in zip(gathered, self._spans, strict=True)]
        return torch.cat(shards, -1)  # [..., V]

    def greedy(self, x: Tensor) -> Tensor:  # [..., V]
        """Return the logits that greedy decoding needs for x [..., C], float32 on the CPU.

        The processes send a summary of seven numbers instead of all logits.
        """
        summary = summarize(self.shard(x))  # [..., 7]
        return restore([theirs.cpu() for theirs in self.group.all_gather(summary)], self._spans)  # [..., V]


class ExpertParallelMixture(nn.Module):
    """A mixture of experts; each process computes its own experts for all tokens, and the results add up."""

    def __init__(self, mixture: MixtureOfExperts, experts: range, group: ProcessGroup) -> None:
        """Take a mixture of which this process holds `experts`."""
        super().__init__()
        self.mixture, self.experts, self.group = mixture, experts, group

    def forward(self, x: Tensor) -> Tensor:  # [B, T, C]
        """Send each token of x [B, T, C] through its chosen experts and the shared ones."""
        tokens = x.flatten(0, 1)  # [N, C]
        y = self.group.all_reduce(self.mixture.routed(tokens, self.experts))  # [N, C]
        return self.mixture.add_shared(y, tokens).view_as(x)  # [B, T, C]

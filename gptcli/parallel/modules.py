"""The layers of a model that is cut over processes: each takes and gives what the whole layer would.

Column-parallel layers have some of the outputs and tell nobody; row-parallel ones have the inputs that such a
layer left behind, and add up. Source: Shoeybi et al. 2019, "Megatron-LM", section 3.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gptcli.config.partition import Rank
from gptcli.engine.summary import restore, summarize
from gptcli.model.int8 import Int8Linear
from gptcli.model.moe import MixtureOfExperts
from gptcli.parallel.group import Group


class RowParallelLinear(nn.Module):
    """Σ over the processes of W[:, mine]·x[mine], then the bias, once."""

    def __init__(self, mine: nn.Linear | Int8Linear, group: Group) -> None:
        """From this process's columns of the matrix, with the whole bias."""
        super().__init__()
        self.bias, mine.bias = mine.bias, None
        self.mine, self.group = mine, group

    def forward(self, x: Tensor) -> Tensor:  # [..., I of mine]
        """[..., I of mine] → [..., O]."""
        y = self.group.sum(self.mine(x))  # [..., O]
        return y if self.bias is None else y + self.bias


class VocabParallelEmbedding(nn.Module):
    """The embedding of tokens; each process has those of its part of the vocabulary, and zeros for others."""

    def __init__(self, weight: nn.Parameter, mine: range, group: Group) -> None:
        super().__init__()
        self.weight, self.mine, self.group = weight, mine, group

    def forward(self, idx: Tensor) -> Tensor:  # [B, T]
        """[B, T] → [B, T, C]."""
        is_mine = (idx >= self.mine.start) & (idx < self.mine.stop)  # [B, T]
        rows = F.embedding((idx - self.mine.start).where(is_mine, 0), self.weight)  # [B, T, C]
        return self.group.sum(rows.where(is_mine.unsqueeze(-1), 0))  # [B, T, C]


class VocabParallelHead(nn.Module):
    """Logits; each process computes those of its part of the vocabulary."""

    def __init__(self, mine: nn.Linear | Int8Linear, vocab_size: int, group: Group) -> None:
        super().__init__()
        self.mine, self.vocab_size, self.group = mine, vocab_size, group
        size = group.ranks.world_size
        self._spans = [Rank(rank, size).shard_range(vocab_size) for rank in range(size)]

    def forward(self, x: Tensor) -> Tensor:  # [..., C]
        """All of them, [..., C] → [..., V]."""
        widest = max(map(len, self._spans))
        logits = self.mine(x)  # [..., V of mine]
        parts = self.group.gather(F.pad(logits, (0, widest - logits.shape[-1])))
        return torch.cat([part[..., : len(span)] for part, span in zip(parts, self._spans, strict=True)], -1)

    def greedy(self, x: Tensor) -> Tensor:  # [..., C]
        """What greedy decoding asks of them, [..., C] → float32 [..., V] on the CPU, by summaries alone."""
        summary = summarize(self.mine(x))  # [..., 7]
        return restore([theirs.cpu() for theirs in self.group.gather(summary)], self._spans)  # [..., V]


class ExpertParallelMixture(nn.Module):
    """A mixture of experts; each process computes its own for all tokens, and what they give is added up."""

    def __init__(self, mixture: MixtureOfExperts, mine: range, group: Group) -> None:
        super().__init__()
        self.mixture, self.mine, self.group = mixture, mine, group

    def forward(self, x: Tensor) -> Tensor:  # [B, T, C]
        """[B, T, C] → [B, T, C]."""
        tokens = x.flatten(0, 1)  # [N, C]
        y = self.group.sum(self.mixture.routed(tokens, self.mine))  # [N, C]
        return self.mixture.add_shared(y, tokens).view_as(x)  # [B, T, C]

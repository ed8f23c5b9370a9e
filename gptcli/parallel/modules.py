"""The layers of a model that is cut over processes: each takes and gives what the whole layer would.

Column-parallel layers have some of the outputs and tell nobody; row-parallel ones have the inputs that such a
layer left behind, and add up. Source: Shoeybi et al. 2019, "Megatron-LM", section 3.
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gptcli.model.moe import MixtureOfExperts
from gptcli.parallel.group import Group
from gptcli.quantize import Int8Linear
from gptcli.shares import Ranks


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
        return self.group.sum(rows * is_mine.unsqueeze(-1))  # [B, T, C]


class VocabParallelHead(nn.Module):
    """Logits; each process computes those of its part of the vocabulary."""

    def __init__(self, mine: nn.Linear | Int8Linear, vocab_size: int, group: Group) -> None:
        super().__init__()
        self.mine, self.vocab_size, self.group = mine, vocab_size, group
        size = group.ranks.size
        self._spans = [Ranks(rank, size).share(vocab_size) for rank in range(size)]

    def forward(self, x: Tensor) -> Tensor:  # [..., C]
        """All of them, [..., C] → [..., V]."""
        widest = max(map(len, self._spans))
        logits = self.mine(x)  # [..., V of mine]
        parts = self.group.gather(F.pad(logits, (0, widest - logits.shape[-1])))
        return torch.cat([part[..., : len(span)] for part, span in zip(parts, self._spans, strict=True)], -1)

    def greedy(self, x: Tensor) -> Tensor:  # [..., C]
        """What greedy decoding asks of them, [..., C] → float32 [..., V], from seven numbers of each process.

        The two largest and the least of every process are exact, and so is the softmax of these: all others
        stand at the logarithm of their mean exponential, which is none of the two and no near-tie with them.
        """
        logits = self.mine(x).float()  # [..., V of mine]
        extremes = torch.cat([logits.topk(2).indices, logits.argmin(-1, keepdim=True)], dim=-1)  # [..., 3]
        rest = logits.scatter(-1, extremes, -torch.inf).logsumexp(-1, keepdim=True)  # [..., 1]
        is_broken = ~logits.isfinite().all(-1, keepdim=True)  # [..., 1]
        told = [logits.gather(-1, extremes), extremes, rest.masked_fill(is_broken, torch.nan)]
        everyones = torch.stack(self.group.gather(torch.cat(told, dim=-1).double()))  # [N, ..., 7]
        n_rest = self.vocab_size - 3 * len(self._spans)
        mean = everyones[..., 6].logsumexp(0) - math.log(max(n_rest, 1))  # [...]
        whole = mean.float().unsqueeze(-1).repeat_interleave(self.vocab_size, dim=-1)  # [..., V]
        for span, theirs in zip(self._spans, everyones, strict=True):
            whole.scatter_(-1, theirs[..., 3:6].long() + span.start, theirs[..., :3].float())
        return whole


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

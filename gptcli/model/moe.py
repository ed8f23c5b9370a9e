"""A mixture of experts: a router sends each token to a few of many feed-forwards."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from gptcli.config.model_config import ModelConfig
from gptcli.model.activations import build_activation
from gptcli.model.feedforward import FeedForward, GatedFeedForward


class MixtureOfExperts(nn.Module):
    """Σ over the K chosen experts of weight · expert(x), plus the shared experts on every token.

    The weights are the softmax over the chosen experts' scores, in float32. With one expert per token the
    weight is its softmax over all experts: over itself alone it would be 1, and the router would not learn.
    Sources: Shazeer et al. 2017; Fedus et al. 2021 (Switch), equation 2; Jiang et al. 2024 (Mixtral),
    section 2.1; shared experts: Dai et al. 2024 (DeepSeekMoE). The names are the tutorial's: an expert is
    fc3(act(fc1(x))), or fc3(act(fc1(x)) ⊙ fc2(x)) when gated.

    The number of tokens of an expert depends on the data, and the host must know it before it launches the
    work. So a CUDA graph cannot capture this layer.
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        C, F, E, bias = config.emb_dim, config.ffn_dim, config.n_experts, config.ffn_bias
        self.n_per_token = config.n_experts_per_token
        self.is_gated = config.is_gated
        self.gate = nn.Linear(C, E, bias=False)
        self.fc1 = nn.ModuleList(nn.Linear(C, F, bias=bias) for _ in range(E))
        self.fc2 = nn.ModuleList(nn.Linear(C, F, bias=bias) for _ in range(E if self.is_gated else 0))
        self.fc3 = nn.ModuleList(nn.Linear(F, C, bias=bias) for _ in range(E))
        self.activation = build_activation(config)
        self.drop = nn.Dropout(config.ffn_drop_rate)
        # A layer learns one β, that of its routed experts; the β of the shared experts is fixed.
        shared_config = config.model_copy(update={"swish_learn_beta": False})
        feed_forward = GatedFeedForward if self.is_gated else FeedForward
        self.shared = nn.ModuleList(feed_forward(shared_config) for _ in range(config.n_shared_experts))

    def forward(self, x: Tensor) -> Tensor:  # [B, T, C]
        """Send each token of x [B, T, C] through its chosen experts and the shared ones."""
        tokens = x.flatten(0, 1)  # [N, C], N = B·T
        y = self.routed(tokens, range(len(self.fc1)))  # [N, C]
        return self.add_shared(y, tokens).view_as(x)  # [B, T, C]

    def routed(self, tokens: Tensor, experts: range) -> Tensor:  # [N, C]
        """Return the weighted sum of those `experts` that each of the tokens [N, C] has chosen."""
        weights, chosen = self.route(self.gate(tokens))  # [N, K] each
        y = torch.zeros_like(tokens)  # [N, C]
        # Sorting makes the assignments of one expert contiguous.
        order = chosen.flatten().argsort(stable=True)  # [N·K]
        counts = torch.bincount(chosen.flatten(), minlength=len(self.fc1)).tolist()
        by_expert = torch.split(order, counts)
        for expert in experts:
            if len(assignments := by_expert[expert]):
                rows = assignments // self.n_per_token  # [n], the tokens of this expert
                weight = weights.flatten()[assignments].unsqueeze(-1)  # [n, 1]
                y.index_add_(0, rows, (weight * self._expert(expert, tokens[rows])).to(y.dtype))
        return y

    def add_shared(self, y: Tensor, tokens: Tensor) -> Tensor:  # [N, C]
        """Add the shared experts' outputs for the tokens [N, C] to y [N, C]."""
        for shared in self.shared:
            y = y + shared(tokens)  # [N, C]
        return y

    def route(self, scores: Tensor) -> tuple[Tensor, Tensor]:  # [N, K] each
        """Return the weights (float32) and the indices of the experts chosen by router scores [N, E]."""
        scores = scores.float()
        best, chosen = scores.topk(self.n_per_token, dim=-1)  # [N, K] each
        if self.n_per_token == 1:
            return scores.softmax(-1).gather(-1, chosen), chosen
        return best.softmax(-1), chosen

    def _expert(self, e: int, x: Tensor) -> Tensor:  # [n, C]
        """Apply expert e to the tokens x [n, C]."""
        hidden = self.activation(self.fc1[e](x))  # [n, F]
        if self.is_gated:
            hidden = hidden * self.fc2[e](x)  # [n, F]
        y: Tensor = self.fc3[e](self.drop(hidden))  # [n, C]
        return y


def load_balancing_loss(scores: Tensor, n_per_token: int) -> Tensor:
    """Return E · Σₑ fₑ·Pₑ for one layer's router scores [N, E]: 1 for an even load, E if one expert has all.

    fₑ is the fraction of assignments that go to expert e, Pₑ its mean probability. Source: Fedus et al. 2021,
    "Switch Transformers", equations 4 to 6, without the factor α; with K experts per token as in Mixtral.
    """
    probabilities = scores.float().softmax(-1)  # [N, E]
    chosen = scores.topk(n_per_token, dim=-1).indices  # [N, K]
    assigned = torch.bincount(chosen.flatten(), minlength=scores.shape[-1]) / chosen.numel()  # [E]
    return scores.shape[-1] * (assigned * probabilities.mean(0)).sum()


@contextmanager
def router_scores(model: nn.Module) -> Iterator[list[Tensor]]:
    """Collect the router scores [N, E] of every mixture that runs inside the `with` block, in order."""
    collected: list[Tensor] = []

    def keep(_router: nn.Module, _inputs: tuple[Tensor], scores: Tensor) -> None:
        collected.append(scores)

    mixtures = [module for module in model.modules() if isinstance(module, MixtureOfExperts)]
    hooks = [mixture.gate.register_forward_hook(keep) for mixture in mixtures]
    try:
        yield collected
    finally:
        for hook in hooks:
            hook.remove()


def build_feed_forward(config: ModelConfig) -> nn.Module:
    """Return the feed-forward that a config names; each maps [B, T, C] to [B, T, C]."""
    if config.is_moe:
        return MixtureOfExperts(config)
    return GatedFeedForward(config) if config.is_gated else FeedForward(config)

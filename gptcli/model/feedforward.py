"""The feed-forward sub-layer: two linears with an activation between."""

from torch import Tensor, nn

from gptcli.config import ModelConfig
from gptcli.model.activations import ACTIVATIONS


class FeedForward(nn.Module):
    """W₂·act(W₁·x + b₁) + b₂ at every position.

    Source: Vaswani et al. 2017, "Attention Is All You Need", section 3.3.
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(config.emb_dim, config.ffn_dim, bias=config.ffn_bias),
            ACTIVATIONS[config.activation](),
            nn.Linear(config.ffn_dim, config.emb_dim, bias=config.ffn_bias),
        )

    def forward(self, x: Tensor) -> Tensor:  # [B, T, C]
        """[B, T, C] → [B, T, C], by way of [B, T, F]."""
        y: Tensor = self.layers(x)  # [B, T, F] inside, [B, T, C] out
        return y

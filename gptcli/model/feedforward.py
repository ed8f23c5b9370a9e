"""The feed-forward sub-layers: two linears with an activation between them, or three with a gate."""

from torch import Tensor, nn

from gptcli.config.model_config import ModelConfig
from gptcli.model.activations import build_activation


class FeedForward(nn.Module):
    """W₂·act(W₁·x + b₁) + b₂ at every position.

    Source: Vaswani et al. 2017, "Attention Is All You Need", section 3.3 (with ReLU).
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(config.emb_dim, config.ffn_dim, bias=config.ffn_bias),
            build_activation(config),
            nn.Linear(config.ffn_dim, config.emb_dim, bias=config.ffn_bias),
        )
        self.drop = nn.Dropout(config.ffn_drop_rate)

    def forward(self, x: Tensor) -> Tensor:  # [B, T, C]
        """Apply the layer to every position of x [B, T, C]."""
        up, activation, down = self.layers
        hidden = self.drop(activation(up(x)))  # [B, T, F]
        y: Tensor = down(hidden)  # [B, T, C]
        return y


class GatedFeedForward(nn.Module):
    """W_down·(act(W_gate·x) ⊙ W_up·x): GLU, bilinear, ReGLU, GEGLU or SwiGLU, depending on the activation.

    Source: Shazeer 2020, "GLU Variants Improve Transformer", equations 5 and 6. The names are LLaMA's.
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(config.emb_dim, config.ffn_dim, bias=config.ffn_bias)
        self.up_proj = nn.Linear(config.emb_dim, config.ffn_dim, bias=config.ffn_bias)
        self.down_proj = nn.Linear(config.ffn_dim, config.emb_dim, bias=config.ffn_bias)
        self.activation = build_activation(config)
        self.drop = nn.Dropout(config.ffn_drop_rate)

    def forward(self, x: Tensor) -> Tensor:  # [B, T, C]
        """Apply the layer to every position of x [B, T, C]."""
        hidden = self.drop(self.activation(self.gate_proj(x)) * self.up_proj(x))  # [B, T, F]
        y: Tensor = self.down_proj(hidden)  # [B, T, C]
        return y

"""A GPT in plain PyTorch, with nanoGPT's module names: the reference for files in its layout."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Norm(nn.Module):
    def __init__(self, width: int, bias: bool) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.bias = nn.Parameter(torch.zeros(width)) if bias else None

    def forward(self, x: Tensor) -> Tensor:
        return F.layer_norm(x, self.weight.shape, self.weight, self.bias, 1e-5)


class Attention(nn.Module):
    def __init__(self, width: int, n_head: int, bias: bool) -> None:
        super().__init__()
        self.n_head = n_head
        self.c_attn = nn.Linear(width, 3 * width, bias=bias)
        self.c_proj = nn.Linear(width, width, bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        B, T, C = x.shape
        q, k, v = (
            part.view(B, T, self.n_head, C // self.n_head).transpose(1, 2)
            for part in self.c_attn(x).split(C, dim=2)
        )
        scores = q @ k.transpose(-2, -1) / (C // self.n_head) ** 0.5
        mask = torch.ones(T, T, dtype=torch.bool).tril()
        y = scores.masked_fill(~mask, float("-inf")).softmax(dim=-1) @ v
        return self.c_proj(y.transpose(1, 2).reshape(B, T, C))


class Mlp(nn.Module):
    def __init__(self, width: int, bias: bool, approximate: str) -> None:
        super().__init__()
        self.c_fc = nn.Linear(width, 4 * width, bias=bias)
        self.c_proj = nn.Linear(4 * width, width, bias=bias)
        self.approximate = approximate

    def forward(self, x: Tensor) -> Tensor:
        return self.c_proj(F.gelu(self.c_fc(x), approximate=self.approximate))


class Block(nn.Module):
    def __init__(self, width: int, n_head: int, bias: bool, approximate: str) -> None:
        super().__init__()
        self.ln_1, self.ln_2 = Norm(width, bias), Norm(width, bias)
        self.attn, self.mlp = Attention(width, n_head, bias), Mlp(width, bias, approximate)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attn(self.ln_1(x))
        return x + self.mlp(self.ln_2(x))


class NanoGPT(nn.Module):
    """A random model where every parameter matters; the head is tied to the embedding."""

    def __init__(
        self,
        vocab_size: int = 97,
        block_size: int = 32,
        n_layer: int = 2,
        n_head: int = 4,
        n_embd: int = 24,
        bias: bool = True,
        approximate: str = "none",
    ) -> None:
        super().__init__()
        self.model_args = {"vocab_size": vocab_size, "block_size": block_size, "n_layer": n_layer}
        self.model_args |= {"n_head": n_head, "n_embd": n_embd, "bias": bias, "dropout": 0.0}
        self.transformer = nn.ModuleDict(
            {
                "wte": nn.Embedding(vocab_size, n_embd),
                "wpe": nn.Embedding(block_size, n_embd),
                "h": nn.ModuleList(Block(n_embd, n_head, bias, approximate) for _ in range(n_layer)),
                "ln_f": Norm(n_embd, bias),
            }
        )
        self.lm_head = nn.Linear(n_embd, vocab_size, bias=False)
        self.transformer["wte"].weight = self.lm_head.weight
        generator = torch.Generator().manual_seed(0)
        with torch.no_grad():
            for parameter in self.parameters():
                parameter += 0.3 * torch.randn(parameter.shape, generator=generator)
        self.requires_grad_(False)

    def forward(self, idx: Tensor) -> Tensor:  # [B, T, V]
        modules = self.transformer
        x = modules["wte"](idx) + modules["wpe"](torch.arange(idx.shape[1]))
        for block in modules["h"]:
            x = block(x)
        return self.lm_head(modules["ln_f"](x))

    def greedy(self, ids: list[int], n: int) -> list[int]:
        """Return n ids, each the most probable after all before it."""
        ids = list(ids)
        for _ in range(n):
            ids.append(int(self(torch.tensor([ids]))[0, -1].argmax()))
        return ids[-n:]

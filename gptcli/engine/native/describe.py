"""A model's parameters as the structs that the kernels read: which array is which matrix."""

from collections.abc import Mapping

import numpy as np

from gptcli.config.model_config import ModelConfig
from gptcli.engine.native import library
from gptcli.engine.native.arrays import Array, are_neighbors, matrix, norm, pointer, vector


class Describer:
    """Describes arrays by their names, which are the tutorial's; `kept` keeps alive what C will read."""

    def __init__(self, config: ModelConfig, parameters: Mapping[str, Array]) -> None:
        self._config, self._parameters = config, parameters
        self.kept: list[object] = []

    def model(self, n_threads: int) -> library.Model:
        """Describe the whole model; raises ValueError for arrays that do not fit."""
        s, C, V = self._config, self._config.emb_dim, self._config.vocab_size
        head = "out_head" if "out_head.weight" in self._parameters else "tok_emb"
        return library.Model(
            n_layers=s.n_layers,
            n_heads=s.n_heads,
            emb_dim=C,
            ffn_dim=s.ffn_dim,
            vocab_size=V,
            layers=(library.Layer * s.n_layers)(*map(self._layer, range(s.n_layers))),
            tok_emb=self._embedding("tok_emb", V),
            pos_emb=self._embedding("pos_emb", s.context_length),
            final_norm=self._norm("final_norm"),
            head=self._matrix(head, V, C),
            norm_eps=s.norm_eps,
            norm_unbiased=s.norm_unbiased,
            n_threads=min(max(n_threads, 1), 256),
        )

    def _layer(self, index: int) -> library.Layer:
        s, C, block = self._config, self._config.emb_dim, f"trf_blocks.{index}"
        qkv, listed = self._qkv(f"{block}.att.W_"), self._feed_forwards(f"{block}.ff")
        n_experts = s.n_experts if s.is_moe else 0
        feed_forwards = (library.FeedForward * len(listed))(*listed)
        self.kept.append(feed_forwards)
        return library.Layer(
            norm1=self._norm(f"{block}.norm1"),
            norm2=self._norm(f"{block}.norm2"),
            qkv=tuple(qkv),
            out_proj=self._matrix(f"{block}.att.out_proj", C, C),
            router=self._matrix(f"{block}.ff.gate", n_experts, C) if s.is_moe else library.Matrix(),
            feed_forwards=feed_forwards,
            n_always=len(listed) - n_experts,
            n_experts=n_experts,
            n_chosen=s.n_experts_per_token,
            n_qkv=len(qkv),
            score_scale=s.score_scale(index),
        )

    def _feed_forwards(self, prefix: str) -> list[library.FeedForward]:
        """Describe a layer's feed-forwards: the only one, or a mixture's shared ones and then its experts."""
        s = self._config
        beta = self._parameters.get(
            f"{prefix}.{'layers.1' if s.feed_forward == 'mlp' else 'activation'}.beta"
        )
        learned = s.swish_beta if beta is None else float(beta)
        if not s.is_moe:
            return [self._feed_forward(prefix, learned)]
        shared = [self._feed_forward(f"{prefix}.shared.{i}", s.swish_beta) for i in range(s.n_shared_experts)]
        names = ("fc1", "fc2", "fc3") if s.is_gated else ("", "fc1", "fc3")
        return shared + [
            self._feed_forward(prefix, learned, tuple(name and f"{name}.{e}" for name in names))
            for e in range(s.n_experts)
        ]

    def _feed_forward(
        self, prefix: str, beta: float, names: tuple[str, ...] | None = None
    ) -> library.FeedForward:
        """Describe one feed-forward; `names` are those of gate, up and down."""
        s, C, F = self._config, self._config.emb_dim, self._config.ffn_dim
        gated = ("gate_proj", "up_proj", "down_proj")
        gate, up, down = names or (gated if s.is_gated else ("", "layers.0", "layers.2"))
        return library.FeedForward(
            self._matrix(f"{prefix}.{gate}", F, C) if gate else library.Matrix(),
            self._matrix(f"{prefix}.{up}", F, C),
            self._matrix(f"{prefix}.{down}", C, F),
            library.ACTIVATIONS.index(s.activation),
            beta,
        )

    def _matrix(self, name: str, n_outputs: int, n_inputs: int) -> library.Matrix:
        weight = self._parameters[f"{name}.weight"]
        bias, scale = self._vector(f"{name}.bias", n_outputs), self._vector(f"{name}.scale", n_outputs)
        self.kept.append(weight)
        return matrix(weight, (n_outputs, n_inputs), f"{name}.weight", bias, scale)

    def _qkv(self, prefix: str) -> list[library.Matrix]:
        """Describe query, key and value, as one matrix if they are neighbors in columns of a file's one."""
        C, names = self._config.emb_dim, [f"{prefix}{name}" for name in ("query", "key", "value")]
        parts = [self._matrix(name, C, C) for name in names]
        if not are_neighbors(parts) or len({part.bias is None for part in parts}) > 1:
            return parts
        if parts[0].bias is not None:
            biases = [self._vector(f"{name}.bias", C) for name in names]
            whole = np.concatenate([bias for bias in biases if bias is not None])
            self.kept.append(whole)
            parts[0].bias = pointer(whole)
        parts[0].n_outputs = 3 * C
        return parts[:1]

    def _embedding(self, name: str, n_rows: int) -> library.Matrix:
        table = self._matrix(name, n_rows, self._config.emb_dim)
        if table.by_columns or table.dtype == library.DTYPES["int8"]:
            raise ValueError(f"{name}.weight must be floats that lie by rows")
        return table

    def _norm(self, name: str) -> library.Norm:
        C = self._config.emb_dim
        scale, shift = self._vector(f"{name}.scale", C), self._vector(f"{name}.shift", C)
        if scale is None:
            raise ValueError(f"{name} has no scale")
        return norm(scale, shift)

    def _vector(self, name: str, size: int) -> Array | None:
        if name not in self._parameters:
            return None
        kept = vector(self._parameters[name], size, name)
        self.kept.append(kept)
        return kept

"""The insides of one forward pass: tokens, predictions, layers, logit lens, attention, shapes."""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

import numpy as np

from gptcli import api
from gptcli.api.score import TokenScore, check_stride, perplexity, score_tokens
from gptcli.cli.inspect_arguments import InspectArguments
from gptcli.cli.options import source_label
from gptcli.cli.output import Notes
from gptcli.cli.processes import load_model
from gptcli.cli.table import table
from gptcli.cli.views.shapes import shapes_table
from gptcli.config.model_config import ModelConfig
from gptcli.errors import UsageError, count
from gptcli.explain.layer_stats import LayerStats, layer_stats
from gptcli.explain.lens import logit_lens
from gptcli.explain.module_trace import ModuleCall, trace_modules
from gptcli.explain.scoring import Candidate, top_candidates
from gptcli.explain.trace import Trace, trace
from gptcli.plots.attention import attention_figure, attention_text
from gptcli.tokenizer import Tokenizer

DEFAULT_TOP = 5


@dataclass(frozen=True)
class ForwardPassView:
    """The forward pass of one prompt; it shows only the parts that the options ask for."""

    options: InspectArguments
    model: "api.LoadedModel"
    tokenizer: Tokenizer
    label: str
    ids: list[int]
    scores: list[TokenScore]
    calls: list[ModuleCall]
    fault: str | None = None

    @classmethod
    def run(cls, options: InspectArguments, source: api.ModelSource, notes: Notes) -> "ForwardPassView":
        """Load the model, score the prompt's tokens if asked to, and trace its modules if asked to."""
        tokenizer = source.tokenizer
        ids = _prompt_ids(options, tokenizer, source.config)
        _check_indices(options, len(ids), source.config)
        stride = check_stride(options.stride, source.config.context_length)
        loading = options.load_options()
        if not options.scores or loading["dtype"] == "auto":
            loading["dtype"] = "float32"
        model = load_model(source, notes, **loading)
        scores = score_tokens(model, ids, stride=stride) if options.all_positions else []
        calls = trace_modules(model.model, [ids]) if options.shapes else []
        label = f"{source_label(source, options.seed)}, prompt {options.prompt!r}"
        return cls(options, model, tokenizer, label, ids, scores, calls)

    @cached_property
    def trace(self) -> Trace:
        """The forward pass with its insides, run when they are first asked for."""
        return trace(self.model.model, self.ids)

    @property
    def position(self) -> int:
        """Return the position after which the next token is predicted."""
        return len(self.ids) - 1 if self.options.position is None else self.options.position

    @property
    def top_k(self) -> int:
        return self.options.top_k or DEFAULT_TOP

    @property
    def heads(self) -> Sequence[int]:
        all_heads = range(self.model.config.n_heads)
        return all_heads if self.options.head is None else [self.options.head]

    def as_json(self) -> Any:
        options, ids = self.options, self.ids
        document: dict[str, Any] = {
            "of": self.label,
            "tokenizer": self.tokenizer.name,
            "prompt": options.prompt,
            "tokens": [{"position": p, "id": i, "text": self._text(i)} for p, i in enumerate(ids)],
        }
        if options.top_k is not None or not options.looks_inside:
            candidates = top_candidates(self.trace.logits[self.position], self.top_k)
            document["next"] = {"position": self.position, "candidates": self._candidates(candidates)}
        if options.all_positions:
            rows = [{**asdict(row), "text": self._text(row.token_id)} for row in self.scores]
            document |= {"scored": rows, "perplexity": perplexity(self.scores)}
        if options.layers:
            document["layers"] = [asdict(row) for row in layer_stats(self.trace)]
        if options.logit_lens:
            lens = logit_lens(self.model.model, self.trace, self.position, self.top_k)
            rows = [{"after": row.name, "candidates": self._candidates(row.candidates)} for row in lens]
            document["logit_lens"] = {"position": self.position, "layers": rows}
        if options.attention:
            maps = self._maps()
            document["attention"] = {
                "layer": options.layer,
                "heads": list(self.heads),
                "shape": ["heads", "query", "key"],
                "weights": maps.tolist(),
            }
        if self.calls:
            document["shapes"] = [asdict(call) for call in self.calls]
        return document

    def as_text(self) -> str:
        return "\n".join(self._sections())

    def _sections(self) -> Iterator[str]:
        options, ids = self.options, self.ids
        yield f"{self.label}\ntokenizer {self.tokenizer.name}\n"
        yield table(
            ("position", "id", "text"),
            [(str(p), str(i), self._text(i)) for p, i in enumerate(ids)],
            numbers=(0, 1),
        )
        if options.top_k is not None or not options.looks_inside:
            yield f"after token {self.position}, {self._text(ids[self.position])}\n"
            yield self._candidate_table(top_candidates(self.trace.logits[self.position], self.top_k))
        if options.all_positions:
            yield self._score_table()
        if options.layers:
            yield _layer_table(layer_stats(self.trace))
        if options.logit_lens:
            yield self._lens_table()
        if options.attention:
            tokens = [self._plain(i) for i in ids]
            for head, weights in zip(self.heads, self._maps(), strict=True):
                yield attention_text(weights, tokens, f"attention of layer {options.layer}, head {head}")
        if self.calls:
            yield shapes_table(self.calls)

    def picture(self, file_format: str) -> bytes:
        title = f"Attention in layer {self.options.layer}"
        tokens = [self._plain(i) for i in self.ids]
        return attention_figure(self._maps(), self.heads, tokens, title, self.label, file_format)

    def _maps(self) -> "np.ndarray[Any, np.dtype[Any]]":
        weights = self.trace.attention[self.options.layer]
        return weights[list(self.heads)].float().cpu().numpy()

    def _candidates(self, candidates: Sequence[Candidate]) -> list[dict[str, Any]]:
        return [{**asdict(candidate), "text": self._text(candidate.token_id)} for candidate in candidates]

    def _candidate_table(self, candidates: Sequence[Candidate]) -> str:
        rows = [
            (str(c.rank), self._text(c.token_id), str(c.token_id), f"{c.probability:.4%}", f"{c.logit:.4f}")
            for c in candidates
        ]
        return table(("rank", "token", "id", "probability", "logit"), rows, numbers=(0, 2, 3, 4))

    def _score_table(self) -> str:
        rows = [
            (str(s.position), self._text(s.token_id), f"{s.logprob:.4f}", f"{s.rank:,}") for s in self.scores
        ]
        headers = ("position", "token", "log-probability", "rank")
        return table(headers, rows, numbers=(0, 2, 3)) + f"\nperplexity {perplexity(self.scores):.4f}\n"

    def _lens_table(self) -> str:
        lens = logit_lens(self.model.model, self.trace, self.position, self.top_k)
        rows = [
            (row.name, *(f"{self._text(c.token_id)} {c.probability:.1%}" for c in row.candidates))
            for row in lens
        ]
        headers = ("after", *(f"rank {n}" for n in range(1, len(rows[0]))))
        return f"logit lens at token {self.position}\n\n" + table(headers, rows, numbers=())

    def _text(self, token_id: int) -> str:
        """Return a token in quotes, with visible spaces and line breaks; as bytes if it is not text."""
        data = self.tokenizer.token_bytes(token_id) or b""
        try:
            return repr(data.decode("utf-8"))
        except UnicodeDecodeError:
            return repr(data)

    def _plain(self, token_id: int) -> str:
        """Return a token as the label of an axis: without quotes, with its space as a dot."""
        return self._text(token_id).removeprefix("b")[1:-1].replace(" ", "·")


def _prompt_ids(options: InspectArguments, tokenizer: Tokenizer, config: ModelConfig) -> list[int]:
    ids = tokenizer.encode(options.prompt or "") or list(tokenizer.begin_ids())
    if len(ids) > config.context_length and not options.scores:
        raise UsageError(
            f"--prompt of {count(len(ids), 'token')}: expected 1 to {config.context_length}"
            " (--all-positions alone takes any length)"
        )
    return ids


def _check_indices(options: InspectArguments, n_tokens: int, config: ModelConfig) -> None:
    indices = (
        ("--position", options.position, n_tokens),
        ("--layer", options.layer, config.n_layers),
        ("--head", options.head, config.n_heads),
    )
    for name, value, end in indices:
        if value is not None and not 0 <= value < end:
            raise UsageError(f"{name} {value}: expected 0 to {end - 1}")


def _layer_table(rows: Sequence[LayerStats]) -> str:
    def cells(row: LayerStats) -> tuple[str, ...]:
        numbers = (f"{value:.4f}" for value in (row.mean, row.std, row.largest, row.norm))
        share = "" if row.share_not_positive is None else f"{row.share_not_positive:.1%}"
        entropies = " ".join(f"{entropy:.2f}" for entropy in row.head_entropies or ())
        return (row.name, *numbers, share, entropies)

    headers = ("after", "mean", "std", "largest", "norm", "≤ 0", "entropy of each head, nats")
    return table(headers, [cells(row) for row in rows], numbers=range(1, 6))

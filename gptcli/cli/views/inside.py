"""One forward pass, opened: tokens, predictions, layers, lens, attention."""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from gptcli import api
from gptcli.cli.render import table
from gptcli.cli.views.request import Request
from gptcli.cli.views.shapes import shapes_table
from gptcli.config.model_config import ModelConfig
from gptcli.errors import UsageError
from gptcli.explain.layer_stats import LayerRow, layer_rows
from gptcli.explain.lens import logit_lens
from gptcli.explain.module_trace import Stop, journey_of
from gptcli.explain.scoring import Candidate, perplexity, score, top_candidates
from gptcli.explain.trace import Trace, trace
from gptcli.plots.attention import attention_figure, attention_text
from gptcli.tokenizer import Tokenizer

DEFAULT_TOP = 5


@dataclass(frozen=True)
class InsideView:
    """What one prompt did inside a model; only the parts that were asked for are shown."""

    request: Request
    ready: "api.LoadedModel"
    tokenizer: Tokenizer
    label: str
    trace: Trace
    stops: list[Stop]
    fault: str | None = None

    @classmethod
    def run(cls, request: Request) -> "InsideView":
        """Make the model ready and run the prompt through it."""
        source = api.select_source(
            request.weights, preset=request.preset, config=request.config, overrides=request.assignments
        )
        tokenizer = Tokenizer(source.config)
        ids = _prompt_ids(request, tokenizer, source.config)
        _check_places(request, len(ids), source.config)
        ready = api.load(source, device=request.device, dtype="float32", seed=request.seed)
        for note in ready.notes:
            request.notes.note(note)
        if source.plan is None:
            origin = f"random weights, seed {request.seed}"
        else:
            origin = f"weights {request.weights}" if request.weights else "the weights that ship"
        label = f"{source.preset or 'config'}, {origin}, prompt {request.prompt!r}"
        stops = journey_of(ready.model, [ids]) if request.shapes else []
        return cls(request, ready, tokenizer, label, trace(ready.model, ids), stops)

    @property
    def position(self) -> int:
        """The token whose next one is looked at."""
        return len(self.trace.ids) - 1 if self.request.position is None else self.request.position

    @property
    def top_k(self) -> int:
        return self.request.top_k or DEFAULT_TOP

    @property
    def heads(self) -> Sequence[int]:
        every = range(self.ready.config.n_heads)
        return every if self.request.head is None else [self.request.head]

    def as_json(self) -> Any:
        request, ids = self.request, self.trace.ids
        document: dict[str, Any] = {
            "of": self.label,
            "prompt": request.prompt,
            "tokens": [{"position": p, "id": i, "text": self._text(i)} for p, i in enumerate(ids)],
        }
        if request.top_k is not None or not request.looks_inside:
            candidates = top_candidates(self.trace.logits[self.position], self.top_k)
            document["next"] = {"position": self.position, "candidates": self._candidates(candidates)}
        if request.all_positions:
            scored = score(self.trace.logits, ids)
            rows = [{**asdict(row), "text": self._text(row.token_id)} for row in scored]
            document |= {"scored": rows, "perplexity": perplexity(scored)}
        if request.layers:
            document["layers"] = [asdict(row) for row in layer_rows(self.trace)]
        if request.logit_lens:
            lens = logit_lens(self.ready.model, self.trace, self.position, self.top_k)
            rows = [{"after": row.name, "candidates": self._candidates(row.candidates)} for row in lens]
            document["logit_lens"] = {"position": self.position, "layers": rows}
        if request.attention:
            maps = self._maps()
            document["attention"] = {
                "layer": request.layer,
                "heads": list(self.heads),
                "shape": ["heads", "query", "key"],
                "weights": maps.tolist(),
            }
        if self.stops:
            document["shapes"] = [asdict(stop) for stop in self.stops]
        return document

    def as_text(self) -> str:
        return "\n".join(self._sections())

    def _sections(self) -> Iterator[str]:
        request, ids = self.request, self.trace.ids
        yield f"{self.label}\n"
        yield table(
            ("position", "id", "text"),
            [(str(p), str(i), self._text(i)) for p, i in enumerate(ids)],
            numbers=(0, 1),
        )
        if request.top_k is not None or not request.looks_inside:
            yield f"after token {self.position}, {self._text(ids[self.position])}\n"
            yield self._candidate_table(top_candidates(self.trace.logits[self.position], self.top_k))
        if request.all_positions:
            yield self._scores()
        if request.layers:
            yield _layer_table(layer_rows(self.trace))
        if request.logit_lens:
            yield self._lens_table()
        if request.attention:
            tokens = [self._plain(i) for i in ids]
            for head, weights in zip(self.heads, self._maps(), strict=True):
                yield attention_text(weights, tokens, f"attention of layer {request.layer}, head {head}")
        if self.stops:
            yield shapes_table(self.stops)

    def picture(self, file_format: str) -> bytes:
        title = f"Attention in layer {self.request.layer}"
        tokens = [self._plain(i) for i in self.trace.ids]
        return attention_figure(self._maps(), self.heads, tokens, title, self.label, file_format)

    def _maps(self) -> "np.ndarray[Any, np.dtype[Any]]":
        weights = self.trace.attention[self.request.layer]
        return weights[list(self.heads)].float().cpu().numpy()

    def _candidates(self, candidates: Sequence[Candidate]) -> list[dict[str, Any]]:
        return [{**asdict(candidate), "text": self._text(candidate.token_id)} for candidate in candidates]

    def _candidate_table(self, candidates: Sequence[Candidate]) -> str:
        rows = [
            (str(c.rank), self._text(c.token_id), str(c.token_id), f"{c.probability:.4%}", f"{c.logit:.4f}")
            for c in candidates
        ]
        return table(("rank", "token", "id", "probability", "logit"), rows, numbers=(0, 2, 3, 4))

    def _scores(self) -> str:
        scored = score(self.trace.logits, self.trace.ids)
        rows = [(str(s.position), self._text(s.token_id), f"{s.logprob:.4f}", f"{s.rank:,}") for s in scored]
        headers = ("position", "token", "log-probability", "rank")
        return table(headers, rows, numbers=(0, 2, 3)) + f"\nperplexity {perplexity(scored):.4f}\n"

    def _lens_table(self) -> str:
        lens = logit_lens(self.ready.model, self.trace, self.position, self.top_k)
        rows = [
            (row.name, *(f"{self._text(c.token_id)} {c.probability:.1%}" for c in row.candidates))
            for row in lens
        ]
        headers = ("after", *(f"rank {n}" for n in range(1, len(rows[0]))))
        return f"logit lens at token {self.position}\n\n" + table(headers, rows, numbers=())

    def _text(self, token_id: int) -> str:
        """A token's text in quotes, spaces and line breaks visible; bytes where it is not text by itself."""
        data = self.tokenizer.token_bytes(token_id) or b""
        try:
            return repr(data.decode("utf-8"))
        except UnicodeDecodeError:
            return repr(data)

    def _plain(self, token_id: int) -> str:
        """A token's text for an axis: its space as a dot, no quotes."""
        return self._text(token_id).removeprefix("b")[1:-1].replace(" ", "·")


def _prompt_ids(request: Request, tokenizer: Tokenizer, config: ModelConfig) -> list[int]:
    ids = tokenizer.encode(request.prompt or "")
    if not ids and tokenizer.end_of_text is not None:
        ids = [tokenizer.end_of_text]
    if not 1 <= len(ids) <= config.context_length:
        raise UsageError(f"--prompt of {len(ids)} tokens: expected 1 to {config.context_length}")
    return ids


def _check_places(request: Request, n_tokens: int, config: ModelConfig) -> None:
    places = (
        ("--position", request.position, n_tokens),
        ("--layer", request.layer, config.n_layers),
        ("--head", request.head, config.n_heads),
    )
    for name, value, end in places:
        if value is not None and not 0 <= value < end:
            raise UsageError(f"{name} {value}: expected 0 to {end - 1}")


def _layer_table(rows: Sequence[LayerRow]) -> str:
    def cells(row: LayerRow) -> tuple[str, ...]:
        numbers = (f"{value:.4f}" for value in (row.mean, row.std, row.largest, row.norm))
        share = "" if row.share_not_positive is None else f"{row.share_not_positive:.1%}"
        entropies = " ".join(f"{entropy:.2f}" for entropy in row.head_entropies or ())
        return (row.name, *numbers, share, entropies)

    headers = ("after", "mean", "std", "largest", "norm", "≤ 0", "entropy of each head, nats")
    return table(headers, [cells(row) for row in rows], numbers=range(1, 6))

"""What a request gave: decoded, then told as the JSON record and as the line of `--stats`."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from gptcli.cli.decoding import Decoding
from gptcli.config.cost import count_parameters
from gptcli.decode.completion import Completion
from gptcli.decode.loop import Choose, decode
from gptcli.decode.request import Request
from gptcli.runtime import ReadyModel


@dataclass(frozen=True)
class Generation:
    """The completions of one request and all that is known of them; whole once their pieces have run out."""

    decoding: Decoding
    request: Request
    ready: ReadyModel
    in_batch: bool = False
    completions: list[Completion] = field(default_factory=list)

    def pieces(self, choose: Choose) -> Iterator[str]:
        """Decode one more completion: its text in the pieces in which it becomes certain."""
        steps = decode(
            self.ready.model,
            self.request.prompt_ids,
            self.request.budget,
            choose,
            use_cache=self.decoding.use_cache,
            logprobs=self.decoding.logprobs,
            engine=self.ready.engine,
            drafts=self.ready.drafts(self.decoding.speculate, self.decoding.draft_tokens),
        )
        self.completions.append(Completion(self.request, self.decoding.tokenizer))
        return self.completions[-1].stream(steps)

    def note(self) -> str | None:
        """What the text does not show."""
        lost = sum(done.ids_without_text for done in self.completions)
        return f"{lost} generated ids stand for no text in the vocabulary" if lost else None

    @property
    def decoded_tokens(self) -> int:
        """Tokens behind the first of each completion: those that cost one step each."""
        return sum(max(0, len(done.ids) - 1) for done in self.completions)

    def timings(self) -> dict[str, float | None]:
        """Seconds over all completions, and rates per second; None where nothing was timed.

        In a batch a step's seconds count for each of its rows, and its read of the weights for none.
        """
        prefill = sum(done.prefill_seconds for done in self.completions)
        decoding = sum(done.decode_seconds for done in self.completions)
        prefilled = self.request.prompt_tokens_used * len(self.completions)
        rate = self.decoded_tokens / decoding if decoding else None
        return {
            "load_seconds": self.ready.load_seconds,
            "prefill_seconds": prefill,
            "decode_seconds": decoding,
            "prefill_tokens_per_second": prefilled / prefill if prefill else None,
            "decode_tokens_per_second": rate,
            "weight_gigabytes_per_second": (
                rate * self.ready.bytes_per_step / 1e9 if rate and not self.in_batch else None
            ),
        }

    def record(self) -> dict[str, Any]:
        """The JSON record of DESIGN: text, ids, why it ended, timings, facts of model and device.

        Several completions stand under `samples`, one by itself at the top.
        """
        import torch

        request, ready = self.request, self.ready
        samples = [_told(done, logprobs=self.decoding.logprobs) for done in self.completions]
        return {
            "prompt": request.prompt,
            "prompt_ids": request.prompt_ids,
            "prompt_tokens_used": request.prompt_tokens_used,
            **(samples[0] if len(samples) == 1 else {"samples": samples}),
            "timings": self.timings(),
            "model": {
                "preset": self.decoding.source.preset,
                "weights": None if self.decoding.weights is None else str(self.decoding.weights),
                "parameters": count_parameters(ready.config),
                "weight_bytes": ready.weight_bytes,
            },
            "device": {
                "device": str(ready.device),
                "dtype": ready.dtype,
                "threads": torch.get_num_threads(),
                "torch": torch.__version__,
                "engine": self.engine,
                **({} if ready.group is None else {"processes": ready.group.ranks.world_size}),
            },
        }

    @property
    def engine(self) -> str:
        """What decodes."""
        return "PyTorch" if self.ready.engine is None else self.ready.engine.describe()

    def _share(self) -> str:
        """The part of what memory can give, measured here and now, that reading the weights took."""
        from gptcli.system.device import read_bandwidth

        gigabytes = self.timings()["weight_gigabytes_per_second"]
        if gigabytes is None or self.ready.device.type != "cpu":
            return ""
        most = read_bandwidth() / 1e9
        return f" ({gigabytes / most:.0%} of {most:.1f})"

    def stats(self) -> str:
        """One line for people: what took how long, and how fast."""
        t = self.timings()

        def rate(key: str) -> str:
            return "-" if t[key] is None else f"{t[key]:,.1f}"

        prefilled = self.request.prompt_tokens_used * len(self.completions)
        return (
            f"load {t['load_seconds']:.2f} s · prefill {prefilled} tokens"
            f" {t['prefill_seconds']:.3f} s, {rate('prefill_tokens_per_second')} tokens/s"
            f" · decode {self.decoded_tokens} tokens {t['decode_seconds']:.3f} s,"
            f" {rate('decode_tokens_per_second')} tokens/s,"
            f" weights {rate('weight_gigabytes_per_second')} GB/s{self._share()} · {self.ready.device}"
            f" {self.ready.dtype} · {self.engine}"
        )


def _told(done: Completion, *, logprobs: bool) -> dict[str, Any]:
    told = {"completion": done.text, "completion_ids": done.ids, "finish_reason": done.finish_reason}
    # Four decimals: more would differ between machines, and with what shares a batch.
    return told | {"logprobs": [round(value, 4) for value in done.logprobs]} if logprobs else told

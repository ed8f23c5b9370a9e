"""One completion: decoded, then told as the JSON record and as the line of `--stats`."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gptcli.cost import count_parameters
from gptcli.decode.completion import Completion
from gptcli.decode.greedy import decode_greedy
from gptcli.decode.request import Request
from gptcli.runtime import ReadyModel
from gptcli.tokenizer import Tokenizer


@dataclass(frozen=True)
class Generation:
    """A completion and all that is known of it; whole once `pieces` has run to its end."""

    request: Request
    completion: Completion
    ready: ReadyModel
    preset: str | None
    weights: Path | None

    def pieces(self, tokenizer: Tokenizer, *, use_cache: bool, logprobs: bool) -> Iterator[str]:
        """Decode: the text in the pieces in which it becomes certain."""
        request = self.request
        steps = decode_greedy(
            self.ready.model,
            request.prompt_ids,
            request.max_new_tokens,
            use_cache=use_cache,
            slide=request.slide,
            logprobs=logprobs,
        )
        return self.completion.stream(steps, tokenizer, request)

    def note(self) -> str | None:
        """What the text does not show."""
        lost = self.completion.ids_without_text
        return f"{lost} generated ids stand for no text in the vocabulary" if lost else None

    def timings(self) -> dict[str, float | None]:
        """Seconds, and rates per second; None where nothing was timed."""
        done = self.completion
        decoded = len(done.ids) - 1
        rate = decoded / done.decode_seconds if decoded > 0 and done.decode_seconds else None
        prefill = self.request.prompt_tokens_used / done.prefill_seconds if done.prefill_seconds else None
        return {
            "load_seconds": self.ready.load_seconds,
            "prefill_seconds": done.prefill_seconds,
            "decode_seconds": done.decode_seconds,
            "prefill_tokens_per_second": prefill,
            "decode_tokens_per_second": rate,
            "weight_gigabytes_per_second": rate * self.ready.bytes_per_step / 1e9 if rate else None,
        }

    def record(self, *, logprobs: bool) -> dict[str, Any]:
        """The JSON record of DESIGN: text, ids, why it ended, timings, facts of model and device."""
        import torch

        request, done, ready = self.request, self.completion, self.ready
        record: dict[str, Any] = {
            "prompt": request.prompt,
            "completion": done.text,
            "prompt_ids": request.prompt_ids,
            "prompt_tokens_used": request.prompt_tokens_used,
            "completion_ids": done.ids,
            "finish_reason": done.finish_reason,
        }
        if logprobs:
            record["logprobs"] = done.logprobs
        record["timings"] = self.timings()
        record["model"] = {
            "preset": self.preset,
            "weights": None if self.weights is None else str(self.weights),
            "parameters": count_parameters(ready.config),
            "weight_bytes": ready.weight_bytes,
        }
        record["device"] = {
            "device": str(ready.device),
            "dtype": ready.dtype,
            "threads": torch.get_num_threads(),
            "torch": torch.__version__,
        }
        return record

    def stats(self) -> str:
        """One line for people: what took how long, and how fast."""
        t = self.timings()

        def rate(key: str) -> str:
            return "-" if t[key] is None else f"{t[key]:,.1f}"

        return (
            f"load {t['load_seconds']:.2f} s · prefill {self.request.prompt_tokens_used} tokens"
            f" {t['prefill_seconds']:.3f} s, {rate('prefill_tokens_per_second')} tokens/s"
            f" · decode {max(0, len(self.completion.ids) - 1)} tokens {t['decode_seconds']:.3f} s,"
            f" {rate('decode_tokens_per_second')} tokens/s,"
            f" weights {rate('weight_gigabytes_per_second')} GB/s · {self.ready.device} {self.ready.dtype}"
        )

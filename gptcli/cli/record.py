"""The records of `--json` and the line of `--stats`: the output, timings, the model and the device."""

from typing import TYPE_CHECKING, Any

from gptcli.config.cost import count_parameters
from gptcli.errors import count

if TYPE_CHECKING:  # they import NumPy, and a loaded model torch
    from gptcli.api import LoadedModel, ModelSource, RequestOutput, Result
    from gptcli.api.output import CompletionOutput


def json_record(
    output: "RequestOutput",
    source: "ModelSource",
    model: "LoadedModel",
    *,
    logprobs: bool,
    in_batch: bool = False,
) -> dict[str, Any]:
    """Return the record of one prompt: text, ids, finish reason, timings, model and device.

    Several completions are listed under `samples`; a single one is part of the record itself.
    """
    samples = [_completion_record(completion, logprobs=logprobs) for completion in output.completions]
    return {
        "prompt": output.prompt,
        "prompt_ids": output.prompt_ids,
        "prompt_tokens_used": output.prompt_tokens_used,
        **(samples[0] if len(samples) == 1 else {"samples": samples}),
        "timings": timings(output, model, in_batch=in_batch),
        "model": {
            "preset": source.preset,
            "weights": source.weights,
            "tokenizer": source.tokenizer.name,
            "parameters": count_parameters(model.config),
            "weight_bytes": model.weight_bytes,
        },
        "device": model.device_facts(),
    }


def batch_record(
    result: "Result", source: "ModelSource", model: "LoadedModel", *, logprobs: bool
) -> dict[str, Any]:
    """Return the record of one line of a batch: its id, then the record of its prompt, or the error."""
    record = result.record
    if result.output is None:
        return {"id": record.id, "prompt": record.prompt, "error": result.error}
    return {"id": record.id, **json_record(result.output, source, model, logprobs=logprobs, in_batch=True)}


def _completion_record(completion: "CompletionOutput", *, logprobs: bool) -> dict[str, Any]:
    record = {
        "completion": completion.text,
        "completion_ids": completion.ids,
        "finish_reason": completion.finish_reason,
    }
    if logprobs:
        # Four decimals: further ones differ between machines, and between batches.
        record["logprobs"] = [round(value, 4) for value in completion.logprobs]
    return record


def timings(output: "RequestOutput", model: "LoadedModel", *, in_batch: bool) -> dict[str, float | None]:
    """Return the seconds of all completions, and rates per second; None for what was not timed.

    In a batch one read of the weights serves many prompts, so there is no GB/s for one of them.
    """
    decode_rate = output.decode_tokens / output.decode_seconds if output.decode_seconds else None
    return {
        "load_seconds": model.load_seconds,
        "prefill_seconds": output.prefill_seconds,
        "decode_seconds": output.decode_seconds,
        "prefill_tokens_per_second": (
            output.prefill_tokens / output.prefill_seconds if output.prefill_seconds else None
        ),
        "decode_tokens_per_second": decode_rate,
        "weight_gigabytes_per_second": (
            decode_rate * model.bytes_per_step / 1e9 if decode_rate and not in_batch else None
        ),
    }


def stats_line(output: "RequestOutput", model: "LoadedModel") -> str:
    """Return the line of `--stats`: seconds and rates of each phase, device, dtype and engine."""
    t = timings(output, model, in_batch=False)

    def rate(key: str) -> str:
        return "-" if t[key] is None else f"{t[key]:,.1f}"

    return (
        f"load {t['load_seconds']:.2f} s · prefill {count(output.prefill_tokens, 'token')}"
        f" {t['prefill_seconds']:.3f} s, {rate('prefill_tokens_per_second')} tokens/s"
        f" · decode {count(output.decode_tokens, 'token')} {t['decode_seconds']:.3f} s,"
        f" {rate('decode_tokens_per_second')} tokens/s,"
        f" weights {rate('weight_gigabytes_per_second')} GB/s"
        f"{_bandwidth_share(t['weight_gigabytes_per_second'], model)} · {model.device}"
        f" {model.dtype} · {model.engine.describe()}{_drafts(model)}"
    )


def _drafts(model: "LoadedModel") -> str:
    return ", int8 draft model" if model.draft_model is not None and model.draft_model.is_ready else ""


def _bandwidth_share(gigabytes_per_second: float | None, model: "LoadedModel") -> str:
    """Return the share of the memory's bandwidth, measured now, that reading the weights took."""
    if gigabytes_per_second is None or model.device.type != "cpu":
        return ""
    from gptcli.system.device import read_bandwidth

    most = read_bandwidth() / 1e9
    return f" ({gigabytes_per_second / most:.0%} of {most:.1f})"

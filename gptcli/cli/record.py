"""What `--json` and `--stats` tell of one prompt: its output, what it took, the model and the device."""

from typing import TYPE_CHECKING, Any

from gptcli.config.cost import count_parameters

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
    """Return the record of one prompt: text, ids, why it ended, timings, facts of model and device.

    Several completions stand under `samples`, a single one at the top.
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
            "parameters": count_parameters(model.config),
            "weight_bytes": model.weight_bytes,
        },
        "device": model.device_facts(),
    }


def batch_record(
    result: "Result", source: "ModelSource", model: "LoadedModel", *, logprobs: bool
) -> dict[str, Any]:
    """Return the JSON line of one record: its id, then the record of the prompt, or the error."""
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
        # Four decimals: more would differ between machines, and with what shares a batch.
        record["logprobs"] = [round(value, 4) for value in completion.logprobs]
    return record


def timings(output: "RequestOutput", model: "LoadedModel", *, in_batch: bool) -> dict[str, float | None]:
    """Return seconds over all completions, and rates per second; None where nothing was timed.

    In a batch one read of the weights serves many prompts, so it is no rate of this one.
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
    """Return the line of `--stats`: what took how long, how fast, and what decodes."""
    t = timings(output, model, in_batch=False)

    def rate(key: str) -> str:
        return "-" if t[key] is None else f"{t[key]:,.1f}"

    return (
        f"load {t['load_seconds']:.2f} s · prefill {output.prefill_tokens} tokens"
        f" {t['prefill_seconds']:.3f} s, {rate('prefill_tokens_per_second')} tokens/s"
        f" · decode {output.decode_tokens} tokens {t['decode_seconds']:.3f} s,"
        f" {rate('decode_tokens_per_second')} tokens/s,"
        f" weights {rate('weight_gigabytes_per_second')} GB/s"
        f"{_bandwidth_share(t['weight_gigabytes_per_second'], model)} · {model.device}"
        f" {model.dtype} · {model.engine.describe()}{_drafts(model)}"
    )


def _drafts(model: "LoadedModel") -> str:
    return ", int8 draft model" if model.draft_model is not None and model.draft_model.is_ready else ""


def _bandwidth_share(gigabytes_per_second: float | None, model: "LoadedModel") -> str:
    """Return the part of the memory's bandwidth, measured here and now, that reading the weights took."""
    if gigabytes_per_second is None or model.device.type != "cpu":
        return ""
    from gptcli.system.device import read_bandwidth

    most = read_bandwidth() / 1e9
    return f" ({gigabytes_per_second / most:.0%} of {most:.1f})"

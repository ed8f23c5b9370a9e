"""The costs of tensor parallelism, for people and as JSON."""

from typing import Any

from gptcli.cli.table import table
from gptcli.config.cost import BYTES_PER_ELEMENT
from gptcli.config.model_config import ModelConfig
from gptcli.config.parallel_cost import (
    GPUS,
    Gpu,
    all_reduces_per_layer,
    fewest_gpus,
    kv_bytes_per_token_per_rank,
    max_parameters_per_rank,
    parameters_read_per_token,
    sent_bytes_per_all_reduce,
    sent_bytes_per_token,
    tokens_per_second,
)
from gptcli.config.partition import check_world_size

# Bytes of one number that is sent or cached; int8 quantizes only weights.
ACTIVATION_BYTES = {"float32": 4, "bfloat16": 2}


def parallel_record(config: ModelConfig, size: int) -> dict[str, Any]:
    """Return what `--tensor-parallel` adds to the JSON.

    Raises `UsageError` for more processes than the model can be split over.
    """
    check_world_size(config, size)
    held, sums = max_parameters_per_rank(config, size), all_reduces_per_layer(config)
    return {
        "processes": size,
        "parameters_per_process": held,
        "bytes_per_process": {dtype: held * n for dtype, n in BYTES_PER_ELEMENT.items()},
        "parameters_read_per_token": parameters_read_per_token(config, size),
        "kv_bytes_per_token_per_process": {
            d: kv_bytes_per_token_per_rank(config, size, n) for d, n in ACTIVATION_BYTES.items()
        },
        "sums_per_layer": sums,
        "bytes_sent_per_token_per_layer": {
            dtype: round(sums * sent_bytes_per_all_reduce(config, size, n))
            for dtype, n in ACTIVATION_BYTES.items()
        },
        "bytes_sent_per_token": {
            dtype: round(sent_bytes_per_token(config, size, n)) for dtype, n in ACTIVATION_BYTES.items()
        },
        "gpus_bfloat16": [_gpu(config, size, gpu) for gpu in GPUS],
    }


def _gpu(config: ModelConfig, size: int, gpu: Gpu) -> dict[str, Any]:
    fewest = fewest_gpus(config, gpu)
    fits = fewest is not None and fewest <= size
    return {
        "gpu": gpu.name,
        "needed": fewest,
        "tokens_per_second_at_most": fewest and round(tokens_per_second(config, fewest, gpu), 1),
        "tokens_per_second_at_most_with_these": round(tokens_per_second(config, size, gpu), 1)
        if fits
        else None,
    }


def parallel_table(config: ModelConfig, size: int) -> str:
    """Return the record for people: the size of the largest shard, what it sends, the GPUs that it needs."""
    record = parallel_record(config, size)
    full = record["kv_bytes_per_token_per_process"]["bfloat16"] * config.context_length
    rows = [
        ("parameters", f"{record['parameters_per_process']:,}", "in the largest shard"),
        *(
            (f"weights in {dtype}", f"{n:,}", f"bytes = {n / 1e9:.2f} GB")
            for dtype, n in record["bytes_per_process"].items()
        ),
        ("cache in bfloat16, full context", f"{full:,}", f"bytes = {full / 1e9:.2f} GB"),
        (
            "sent in bfloat16, a token, a layer",
            f"{record['bytes_sent_per_token_per_layer']['bfloat16']:,}",
            "bytes",
        ),
        ("sent in bfloat16, a token", f"{record['bytes_sent_per_token']['bfloat16']:,}", "bytes"),
    ]

    def rate(value: float | None) -> str:
        return "do not fit" if value is None else f"{value:,.1f}"

    gpus = [
        (
            gpu["gpu"],
            str(gpu["needed"] or "more than can share it"),
            rate(gpu["tokens_per_second_at_most"]),
            rate(gpu["tokens_per_second_at_most_with_these"]),
        )
        for gpu in record["gpus_bfloat16"]
    ]
    headers = ("in bfloat16 on", "needed", "tokens/s at most with those", f"with {size}")
    return (
        table((f"each of {size} processes", "", "unit"), rows, numbers=(1,))
        + "\n"
        + table(headers, gpus, numbers=(1, 2, 3))
    )

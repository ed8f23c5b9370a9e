"""The counts of a model, for people and as JSON: parameters, bytes, cache, FLOPs."""

from typing import Any

from gptcli.cli.table import table
from gptcli.cli.views.parallel import parallel_record, parallel_table
from gptcli.config.cost import (
    count_active_parameters,
    count_parameters,
    flops,
    kv_bytes_per_token,
    parameter_variants,
    parameters_by_component,
    weight_bytes,
)
from gptcli.config.model_config import ModelConfig
from gptcli.config.presets import ResolvedConfig
from gptcli.errors import count


def count_record(model: ResolvedConfig, processes: int | None = None) -> dict[str, Any]:
    """Return all counts of one model, as `--json` prints them.

    With `processes` they include the costs of tensor parallelism over that many.
    """
    config = model.config
    cost = flops(config)
    per_token = kv_bytes_per_token(config)
    return {
        "preset": model.preset,
        "config": config.model_dump(),
        "config_origin": dict(model.origin),
        "parameters": {
            "total": count_parameters(config),
            "active_per_token": count_active_parameters(config),
            **parameter_variants(config),
            **parameters_by_component(config),
        },
        "bytes": weight_bytes(config),
        "kv_cache": {
            "bytes_per_token": per_token,
            "bytes_full_context": per_token * config.context_length,
        },
        "flops": {
            "forward_per_token": cost.forward_per_token,
            "forward_per_token_without_attention": cost.forward_per_token_without_attention,
        },
        **({} if processes is None else {"tensor_parallel": parallel_record(config, processes)}),
    }


def count_text(model: ResolvedConfig, processes: int | None = None) -> str:
    """Return the counts of one model for people: components with their share, then bytes and FLOPs."""
    record = count_record(model)
    parts = [_components(model.config, record), _variants(record["parameters"]), _costs(model.config, record)]
    if processes is not None:
        parts.append(parallel_table(model.config, processes))
    return f"{title(model)}\n\n" + "\n".join(parts)


def _components(config: ModelConfig, record: dict[str, Any]) -> str:
    total = record["parameters"]["total"]
    rows = [
        (name.replace("_", " "), f"{n:,}", f"{n / total:.1%}")
        for name, n in parameters_by_component(config).items()
    ]
    if config.tie_embeddings:
        rows[-1] = (rows[-1][0], "tied", "")
    rows.append(("total", f"{total:,}", "100.0%"))
    if config.is_moe:
        active = record["parameters"]["active_per_token"]
        rows.append(("active per token", f"{active:,}", f"{active / total:.1%}"))
    return table(("component", "parameters", "share"), rows, numbers=(1, 2))


def _variants(counts: dict[str, int]) -> str:
    rows = [
        (f"head {head}", f"{counts[head]:,}", f"{counts[head + '_without_qkv_bias']:,}")
        for head in ("tied", "untied")
    ]
    return table(("counted as", "with qkv bias", "without qkv bias"), rows, numbers=(1, 2))


def _costs(config: ModelConfig, record: dict[str, Any]) -> str:
    cache, work = record["kv_cache"], record["flops"]
    full = cache["bytes_full_context"]
    rows = [
        *(
            (f"weights in {dtype}", f"{n:,}", f"bytes = {_gigabytes(n)}")
            for dtype, n in record["bytes"].items()
        ),
        ("key/value cache, a token", f"{cache['bytes_per_token']:,}", "bytes in float32"),
        (
            f"key/value cache, {count(config.context_length, 'token')}",
            f"{full:,}",
            f"bytes = {_gigabytes(full)}",
        ),
        ("forward pass, a token", f"{work['forward_per_token']:,}", "FLOPs at full context"),
        ("… without attention scores", f"{work['forward_per_token_without_attention']:,}", "FLOPs"),
    ]
    return table(("cost", "", "unit"), rows, numbers=(1,))


def preset_table(models: list[ResolvedConfig]) -> str:
    """Return a table that compares the models of all presets."""
    rows = []
    for model in models:
        record = count_record(model)
        rows.append(
            (
                str(model.preset),
                "tied" if model.config.tie_embeddings else "own",
                f"{record['parameters']['total']:,}",
                f"{record['parameters']['tied']:,}",
                f"{record['parameters']['untied']:,}",
                f"{record['parameters']['untied_without_qkv_bias']:,}",
                _gigabytes(record["bytes"]["float32"]),
                f"{record['kv_cache']['bytes_per_token']:,}",
                f"{record['flops']['forward_per_token'] / 1e9:.2f}",
            )
        )
    headers = (
        "preset",
        "head",
        "parameters",
        "tied",
        "untied",
        "untied, no qkv bias",
        "float32",
        "KV bytes/token",
        "GFLOPs/token",
    )
    return table(headers, rows, numbers=range(2, len(headers)))


def title(model: ResolvedConfig) -> str:
    """Return one line that says which model it is."""
    return f"{model.preset or 'config'}: {sizes(model.config)}"


def sizes(config: ModelConfig) -> str:
    """Return the sizes of a model in one line."""
    return (
        f"{count(config.n_layers, 'layer')}, width {config.emb_dim}, {count(config.n_heads, 'head')},"
        f" {_feed_forward(config)},"
        f" context {config.context_length}, vocabulary {config.vocab_size}"
    )


def _feed_forward(config: ModelConfig) -> str:
    if not config.is_moe:
        return f"feed-forward {config.feed_forward} {config.ffn_dim}"
    shared = f" and {config.n_shared_experts} shared" if config.n_shared_experts else ""
    experts = f"{count(config.n_experts, 'expert')} {config.expert_feed_forward} {config.ffn_dim}"
    return f"{experts}{shared}, {config.n_experts_per_token} per token"


def _gigabytes(n: int) -> str:
    return f"{n / 1e9:.2f} GB" if n >= 1e8 else f"{n / 1e6:.2f} MB"

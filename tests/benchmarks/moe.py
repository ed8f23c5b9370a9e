"""A mixture of experts and dense models of its active and total size: python -m tests.benchmarks.moe"""

import argparse
import json
import time

from gptcli.config.cost import count_active_parameters, count_parameters
from gptcli.config.presets import resolve_options
from gptcli.model.init import random_model
from tests.benchmarks.timing import interleaved
from tests.decoding import decode_tokens

WIDTHS = {"dense, active size": 2 * 2048, "dense, total size": 8 * 2048}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--new", type=int, default=32)
    options = parser.parse_args()
    configs = {"gpt-124m-moe": resolve_options("gpt-124m-moe", None, []).config}
    for name, width in WIDTHS.items():
        configs[name] = resolve_options("gpt-124m-swiglu", None, [f"ffn_dim={width}"]).config
    models = {name: random_model(config, 123).requires_grad_(False) for name, config in configs.items()}

    def rate(name: str) -> float:
        steps = decode_tokens(models[name], range(16), options.new + 1)
        next(steps)  # prefill
        start = time.perf_counter()
        for _ in steps:
            pass
        return options.new / (time.perf_counter() - start)

    rates = interleaved({name: lambda name=name: rate(name) for name in models}, options.rounds)
    print(f"{'':22}{'parameters':>14}{'active':>14}{'tokens/s':>10}{'ratio':>8}")
    for name, config in configs.items():
        counts = f"{count_parameters(config):14,}{count_active_parameters(config):14,}"
        print(f"{name:22}{counts}{rates[name]:10.1f}{rates[name] / rates['gpt-124m-moe']:8.2f}")
    print(json.dumps({"tokens_per_second": rates, **vars(options)}))


if __name__ == "__main__":
    main()

"""The loss curve of a training run: python -m tests.benchmarks.loss_curve DIR/log.jsonl curve.png"""

import json
import sys
from pathlib import Path

from gptcli.plots.figure import new_figure, to_bytes

WINDOW = 50


def main() -> None:
    log, picture = map(Path, sys.argv[1:3])
    records = {}  # in the log of a resumed run the later record of a step counts
    for line in log.read_text().splitlines():
        record = json.loads(line)
        records[record["step"], "loss" in record] = record
    steps = [r for (_, is_step), r in sorted(records.items()) if is_step]
    judged = [r for (_, is_step), r in sorted(records.items()) if not is_step]
    tokens = [r["tokens"] / 1e6 for r in steps]
    means = [
        sum(r["loss"] for r in steps[max(0, i - WINDOW + 1) : i + 1]) / min(WINDOW, i + 1)
        for i in range(len(steps))
    ]
    per_token = judged[-1]["validation_nats_per_token"] / judged[-1]["validation_bits_per_byte"]
    tokens_per_step = steps[0]["tokens"] / steps[0]["step"]
    figure = new_figure((7.2, 4.2))
    panel = figure.subplots()
    panel.plot(tokens, [r["loss"] for r in steps], linewidth=0.5, alpha=0.35, label="training, each step")
    panel.plot(tokens, means, label=f"training, mean of {WINDOW} steps")
    panel.plot(
        [r["step"] * tokens_per_step / 1e6 for r in judged],
        [r["validation_nats_per_token"] for r in judged],
        "o-",
        label="validation",
    )
    panel.set_xlabel("million tokens")
    panel.set_ylabel("nats per token")
    bits = panel.secondary_yaxis("right", functions=(lambda n: n / per_token, lambda b: b * per_token))
    bits.set_ylabel("bits per byte")
    panel.set_ylim(min(means) - 0.3, 6.5)
    panel.set_title("stories: loss while training")
    panel.grid(True, alpha=0.4)
    panel.legend()
    picture.write_bytes(to_bytes(figure, picture.suffix.lstrip(".")))


if __name__ == "__main__":
    main()

"""Ten thousand prompts: the rate in batches against one by one, and the records after kill -9.

    python -m tests.benchmarks.batch [PROMPTS] [KILLS]

Prompts are pieces of our own presets' card; the model is the one that ships. The killed run goes on with
`--resume` until it ends; its file must equal the undisturbed one's, byte for byte but for timings.
"""

import json
import os
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path

CARD = Path(__file__).parents[2] / "configs" / "stories.md"
BY_ONE = 20  # one by one: only every 20th prompt, since all would take ten minutes


def write_prompts(path: Path, n: int) -> None:
    """Write prompts of 1 to 40 words, for 8 to 48 new tokens; one line in 500 is not a record."""
    draw, words = random.Random(0), CARD.read_text().split()
    with path.open("w") as file:
        for i in range(n):
            at, length = draw.randrange(len(words) - 40), draw.choice([1, 2, 4, 8, 8, 16, 40])
            record = {"id": f"r{i}", "prompt": " ".join(words[at : at + length])}
            line = json.dumps(record | {"max_new_tokens": draw.choice([8, 16, 32, 48])})
            file.write((line if i % 500 else line[:-3]) + "\n")


def command(source: Path, output: Path, *options: str) -> list[str]:
    base = [sys.executable, "-m", "gptcli", "generate", "-q", "--input", str(source)]
    return [*base, "--output", str(output), *options]


def timed(source: Path, output: Path, *options: str) -> float:
    start = time.perf_counter()
    status = subprocess.run(command(source, output, *options), stderr=subprocess.DEVNULL).returncode
    assert status == 1, status  # the bad lines
    return time.perf_counter() - start


def killed(source: Path, output: Path, kills: int, seconds: float) -> list[int]:
    """Return the number of records in the file after each kill -9."""
    draw, standing = random.Random(1), []
    for _ in range(kills):
        child = subprocess.Popen(command(source, output, "--resume"), stderr=subprocess.DEVNULL)
        time.sleep(1.0 + draw.uniform(0, seconds / kills))
        child.kill()
        child.wait()
        standing.append(output.read_bytes().count(b"\n") if output.exists() else 0)
    timed(source, output, "--resume")
    return standing


def read_records(path: Path) -> list[dict]:
    records = [json.loads(line) for line in path.open()]
    return [{key: value for key, value in record.items() if key != "timings"} for record in records]


def main(n: int = 10_000, kills: int = 10) -> None:
    folder = Path(tempfile.mkdtemp())
    source = folder / "prompts.jsonl"
    write_prompts(source, n)
    fewer = folder / "fewer.jsonl"
    fewer.write_text("".join(source.open().readlines()[::BY_ONE]))
    figures = {"prompts": n}
    for size in ("1", "16", "32"):
        some = folder / f"some{size}.jsonl"
        figures[f"records_per_second_{size}"] = n / BY_ONE / timed(fewer, some, "--batch-size", size)
        assert read_records(some) == read_records(folder / "some1.jsonl")
    whole = folder / "whole.jsonl"
    seconds = timed(source, whole)
    figures |= {"seconds": seconds, "records_per_second": n / seconds}
    again = folder / "again.jsonl"
    standing = killed(source, again, kills, seconds)
    records = read_records(whole)
    assert [record["id"] for record in records if "error" not in record] == [
        f"r{i}" for i in range(n) if i % 500
    ]
    figures |= {"records_after_each_kill": standing, "equal_after_kills": records == read_records(again)}
    print(json.dumps(figures, indent=1))
    os._exit(0 if figures["equal_after_kills"] else 1)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))

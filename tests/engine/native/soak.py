"""A thousand rounds of forks, threads and new models; ends with status 0 if all logits are right."""

import os
import sys
import threading

import numpy as np

from gptcli.engine.native.model import NativeModel
from tests.engine.native.models import random_parameters, tiny_sizes

SIZES = tiny_sizes(emb_dim=64, n_heads=4, ffn_dim=256, n_layers=2, vocab_size=600)
PARAMETERS = random_parameters(SIZES, columns=True)
IDS = list(range(9))


def is_right(n_threads: int) -> bool:
    """Return whether a new engine and a new cache give the expected bits."""
    engine = NativeModel(SIZES, PARAMETERS, n_threads)
    cache = engine.new_cache(1, 16)
    engine.forward([IDS], cache)
    return all(np.array_equal(engine.forward([[5]], cache), row) for row in EXPECTED)


def is_right_in_child() -> bool:
    """Return whether a forked child gives them."""
    child = os.fork()
    if child == 0:
        os._exit(0 if is_right(3) else 1)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def expect() -> list[np.ndarray]:
    engine = NativeModel(SIZES, PARAMETERS, 1)
    cache = engine.new_cache(1, 16)
    engine.forward([IDS], cache)
    return [engine.forward([[5]], cache) for _ in range(2)]


EXPECTED = expect()


def main(n_rounds: int) -> int:
    failures: list[str] = []

    def check(what: str, is_fine: bool) -> None:
        if not is_fine:
            failures.append(what)

    for number in range(n_rounds):
        threads = [
            threading.Thread(target=lambda n=n: check(f"thread {n}", is_right(n)))
            for n in range(1, 1 + number % 4)
        ]
        for thread in threads:
            thread.start()
        if number % 2:  # while the threads are at work
            check("child", is_right_in_child())
        check("main", is_right(1 + number % 3))
        for thread in threads:
            thread.join()
    # A thread is at work when the interpreter ends.
    threading.Thread(target=lambda: [is_right(2) for _ in range(10**6)], daemon=True).start()
    print(failures or "right")
    return bool(failures)


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1])))

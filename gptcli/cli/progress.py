"""A progress bar on stderr, only on a terminal."""

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager


class Bar:
    """A progress bar that shows nothing."""

    def advance(self, n_records: int, n_tokens: int) -> None:
        """Show that `n_records` are done, with `n_tokens` generated for them."""


@contextmanager
def progress_bar(total: int | None, *, is_wanted: bool) -> Iterator[Bar]:
    """Yield a bar with rate and time left; one that shows nothing if it is not wanted or not a terminal."""
    if not is_wanted or not sys.stderr.isatty():
        yield Bar()
        return
    from rich import progress
    from rich.console import Console

    columns = (
        progress.BarColumn(),
        progress.MofNCompleteColumn(),
        progress.TextColumn("{task.fields[rate]}"),
        progress.TimeRemainingColumn(),
    )
    with progress.Progress(
        *columns,
        console=Console(stderr=True),
        transient=True,
        redirect_stdout=False,  # rich would send the records to stderr
        redirect_stderr=False,
    ) as shown:
        task = shown.add_task("", total=total, rate="")
        start = time.perf_counter()

        class Shown(Bar):
            def advance(self, n_records: int, n_tokens: int) -> None:
                rate = n_tokens / max(1e-9, time.perf_counter() - start)
                shown.update(task, completed=n_records, rate=f"{rate:,.0f} tokens/s")

        yield Shown()

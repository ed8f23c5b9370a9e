"""A model in this process, and in the other processes that torchrun started to share it."""

from __future__ import annotations

import gc
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from gptcli.cli.output import Notes, one_line
from gptcli.cli.read_ahead import ReadAhead
from gptcli.system.signals import raise_on_signal
from gptcli.system.torchrun import read_torchrun

if TYPE_CHECKING:
    from gptcli.api import LoadedModel, ModelSource, ProcessGroup

T = TypeVar("T")


def join(device: str) -> ProcessGroup | None:
    """Connect to the other processes that share the model; return None where this one is alone."""
    if (torchrun := read_torchrun()) is None:
        return None
    from gptcli.api import join_processes

    raise_on_signal()  # from here on the others must learn when this one ends
    return join_processes(torchrun, device)


def load_model(source: ModelSource, notes: Notes, **options: Any) -> LoadedModel:
    """Load a model and print its notes; from here on garbage is collected."""
    from gptcli.api import exit_on_bus_error, load

    if source.plan is not None:
        path = source.plan.checkpoint.path
        exit_on_bus_error(f"error: {one_line(str(path))}: another program changed it while it was read\n")
    model = load(source, **options)
    for note in model.notes[len(source.notes) :]:  # the source's own were printed when it was selected
        notes.note(note)
    if not gc.isenabled():  # `__main__` has turned it off for the start
        gc.freeze()  # what exists by now stays, so collections need not visit it
        gc.enable()
    return model


class SharedRecords(Generic[T]):
    """`ReadAhead` for several processes: all of them get the same items in the same order."""

    def __init__(self, own: ReadAhead[T], group: ProcessGroup) -> None:
        """Share the items that the first process reads; the others read nothing."""
        self._own, self._group = own, group
        self.ended = False

    def next(self, timeout_seconds: float | None) -> T | None:
        """Return the next item; None when none came in time, or when it has `ended`."""
        item = self._own.next(timeout_seconds) if self._group.is_first else None
        item, self.ended = self._group.broadcast_object((item, self._own.ended))
        return item

"""The program `gptcli`, also run as `python -m gptcli`."""

import gc

from gptcli.system import signals

signals.exit_on_signal()  # before anything that takes time
# Imports make hundreds of thousands of objects that stay, and each collection would visit all of them, which
# takes 0.25 s of a start with torch. `cli.processes.load_model` turns collection on again.
gc.disable()

from gptcli.cli.app import main  # noqa: E402

if __name__ == "__main__":
    main()

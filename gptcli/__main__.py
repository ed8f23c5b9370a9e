"""`gptcli`, and `python -m gptcli`."""

from gptcli import interrupts

interrupts.end_at_once()  # before anything that takes time

from gptcli.cli.app import main  # noqa: E402

if __name__ == "__main__":
    main()

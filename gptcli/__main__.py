"""`python -m gptcli`: the same as the `gptcli` script."""

from gptcli.cli.app import main

main()

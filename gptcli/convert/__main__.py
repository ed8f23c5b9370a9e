"""`python -m gptcli.convert`."""

from gptcli.cli.convert import main

if __name__ == "__main__":
    main()

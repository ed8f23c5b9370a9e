"""`python -m gptcli.train`."""

from gptcli.cli.train import main

if __name__ == "__main__":
    main()

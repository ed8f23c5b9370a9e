"""Tables of aligned columns, the same on a terminal and in a pipe."""

from collections.abc import Collection, Sequence

from gptcli.cli.output import one_line


def table(headers: Sequence[str], rows: Sequence[Sequence[str]], *, numbers: Collection[int]) -> str:
    """Return aligned columns with a rule below the headers; the columns `numbers` are aligned to the right.

    Lines are never wrapped or cropped, so a pipe, a narrow terminal and `TERM=dumb` all get every digit.
    """
    from rich.cells import cell_len  # Chinese names and emoji are two columns wide

    shown = [[one_line(cell) for cell in row] for row in (headers, *rows)]
    widths = [max(cell_len(row[column]) for row in shown) for column in range(len(headers))]

    def line(row: Sequence[str]) -> str:
        cells = []
        for column, cell in enumerate(row):
            padding = " " * (widths[column] - cell_len(cell))
            cells.append(padding + cell if column in numbers else cell + padding)
        return "  ".join(cells).rstrip()

    rule = "  ".join("─" * width for width in widths)
    return "\n".join([line(shown[0]), rule, *(line(row) for row in shown[1:])]) + "\n"

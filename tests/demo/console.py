"""How the demo talks: a heading per step with its time, and tables that fit a terminal.

Called by the other modules here. Owns no facts.
"""

import contextlib
import shutil
import sys
import textwrap
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

_COLOURS = {"bold": "1", "dim": "2", "red": "31", "green": "32"}


class DemoError(Exception):
    """The demo can't go on; the message says why and what to do."""


def paint(text: str, colour: str) -> str:
    """Return `text` in a colour, where the output is a terminal."""
    return f"\033[{_COLOURS[colour]}m{text}\033[0m" if sys.stdout.isatty() else text


@contextlib.contextmanager
def step(what: str) -> Iterator[None]:
    """Print a heading, and when the step is done the seconds it took."""
    print(f"\n{paint('▸ ' + what, 'bold')}", flush=True)
    start = time.monotonic()
    yield
    print(paint(f"  {time.monotonic() - start:.1f} s", "dim"), flush=True)


def say(line: str = "") -> None:
    """Print a line of a step."""
    print(f"  {line}" if line else "", flush=True)


def print_plan(plan: Mapping[str, Any]) -> None:
    """Print `status.plan`: where the bytes go, and each setting with its reason."""
    blocks = plan["blocks"]
    _table(
        ("memory", "size", "how"),
        [(line["component"], line["size"], line["how"]) for line in plan["ledger"]],
        right={1},
    )
    say()
    _table(
        ("setting", "value", "why"),
        [(line["flag"], line["value"], line["reason"]) for line in plan["settings"]],
        right={1},
    )
    say()
    say(
        f"{blocks['total']:,} KV blocks of {blocks['size']} tokens: room for "
        f"{plan['concurrency']} requests of the full {plan['maxModelLen']:,} tokens"
    )


def _table(head: Sequence[str], rows: Sequence[Sequence[str]], *, right: set[int]) -> None:
    """Print aligned columns; the last one wraps."""
    lines = [tuple(head), *(tuple(map(str, row)) for row in rows)]
    widths = [max(len(line[i]) for line in lines) for i in range(len(head) - 1)]
    indent = 2 + sum(widths) + 2 * len(widths)
    room = max(shutil.get_terminal_size((110, 24)).columns - indent, 30)
    for number, line in enumerate(lines):
        cells = [
            cell.rjust(width) if i in right else cell.ljust(width)
            for i, (cell, width) in enumerate(zip(line, widths, strict=False))
        ]
        wrapped = textwrap.wrap(line[-1], room) or [""]
        text = "  ".join([*cells, f"\n  {' ' * (indent - 2)}".join(wrapped)])
        say(paint(text, "dim") if number == 0 else text)

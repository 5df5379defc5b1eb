"""The table of values in the chart's README, made of the comments in values.yaml.

`python -m tests.setup.chart_values` rewrites it; `make chart` does so. A comment "# -- TEXT"
belongs to the key below it, and every key with a value on its line has one.
"""

import re
import sys
from dataclasses import dataclass
from pathlib import Path

from tests.cluster.paths import REPOSITORY

CHART = REPOSITORY / "charts" / "qwen-operator"
_BEGIN, _END = "<!-- values: made by `make chart` -->", "<!-- end of values -->"
_KEY = re.compile(r"(?P<indent> *)(?P<key>[A-Za-z]+):(?: +(?P<value>.+))?")


@dataclass(frozen=True, slots=True)
class Value:
    """One value: its path with dots, its default as written, what it does."""

    path: str
    default: str
    text: str


def parse_values(text: str) -> list[Value]:
    """Return the values in their order. Raises ValueError for one without a comment."""
    found: list[Value] = []
    path: list[str] = []
    comment = ""
    for line in text.splitlines():
        stripped = line.strip()
        if stripped.startswith("# -- "):
            comment = stripped.removeprefix("# -- ")
        elif match := _KEY.fullmatch(line):
            path = [*path[: len(match["indent"]) // 2], match["key"]]
            if match["value"] is not None:
                if not comment:
                    raise ValueError(f"values.yaml: {'.'.join(path)} has no comment `# -- …`")
                found.append(Value(".".join(path), match["value"], comment))
            comment = ""
        elif stripped and not stripped.startswith("#"):
            raise ValueError(f"values.yaml: write lists and maps on one line, not {line!r}")
    return found


def build_table(values: list[Value]) -> str:
    """Return a Markdown table."""
    rows = [
        f"| `{v.path}` | `{v.default}` | {v.text.replace('|', chr(92) + '|')} |" for v in values
    ]
    return "\n".join(["| value | default | |", "|---|---|---|", *rows])


def with_table(readme: str, table: str) -> str:
    """Return the README with this table. Raises ValueError where its marks are missing."""
    before, begin, rest = readme.partition(_BEGIN)
    _, end, after = rest.partition(_END)
    if not begin or not end:
        raise ValueError(f"README.md has no lines {_BEGIN!r} and {_END!r}")
    return f"{before}{begin}\n{table}\n{end}{after}"


def render(chart: Path = CHART) -> str:
    """Return the README as it must be."""
    table = build_table(parse_values((chart / "values.yaml").read_text("utf-8")))
    return with_table((chart / "README.md").read_text("utf-8"), table)


def main() -> int:
    """Rewrite the README."""
    (CHART / "README.md").write_text(render(), "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())

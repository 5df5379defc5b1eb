"""`qwen-engine` and `python -m qwen_engine`."""

from __future__ import annotations

import sys

from qwen_engine import environment
from qwen_engine.cli import run


def main() -> None:
    environment.prepare()
    sys.exit(run(sys.argv[1:]))


if __name__ == "__main__":
    main()

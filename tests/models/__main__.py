"""Build a test model and print its folder: python -m tests.models NAME."""

from __future__ import annotations

import argparse
from pathlib import Path

from tests.models.qwen3 import NAME, build_random_qwen3
from tests.models.smollm2 import build_smollm2
from tests.models.tiny import SHAPES, build_tiny


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.models", description=__doc__)
    parser.add_argument("name", choices=["smollm2", NAME, *SHAPES], help="which model")
    parser.add_argument("--out", type=Path, help="folder to make (default: in the cache)")
    arguments = parser.parse_args()
    if arguments.name == "smollm2":
        print(build_smollm2(arguments.out))
    elif arguments.name == NAME:
        print(build_random_qwen3(arguments.out))
    else:
        print(build_tiny(arguments.name, arguments.out))


if __name__ == "__main__":
    main()

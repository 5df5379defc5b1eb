"""Build a test model and print its folder: python -m tests.models NAME."""

from __future__ import annotations

import argparse
from pathlib import Path

from tests.models.memorised import build_memorised
from tests.models.qwen3 import NAME, build_random_qwen3
from tests.models.smollm2 import build_smollm2
from tests.models.tiny import SHAPES, build_tiny

BUILDERS = {"smollm2": build_smollm2, "memorised": build_memorised, NAME: build_random_qwen3}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.models", description=__doc__)
    parser.add_argument("name", choices=[*BUILDERS, *SHAPES], help="which model")
    parser.add_argument("--out", type=Path, help="folder to make (default: in the cache)")
    arguments = parser.parse_args()
    if arguments.name in BUILDERS:
        print(BUILDERS[arguments.name](arguments.out))
    else:
        print(build_tiny(arguments.name, arguments.out))


if __name__ == "__main__":
    main()

"""`python -m tests.bench.vision`: pictures beside transformers and vLLM; prints Markdown."""

from __future__ import annotations

import argparse
import signal
import sys

import torch

from tests.bench.engines import NUM_CORES
from tests.bench.vision.first_token import first_token_rows
from tests.bench.vision.preprocessing import preprocessing_rows
from tests.bench.vision.tower import tower_rows
from tests.bench.vision.turns import HEADER, Row, line, measure


def main() -> None:
    arguments = _parse()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that servers end too
    torch.set_num_threads(NUM_CORES)
    words = arguments.rows.split(",")

    def wanted(name: str) -> bool:
        return any(word.strip() in name for word in words)

    print(HEADER, flush=True)
    with torch.inference_mode():
        with preprocessing_rows(wanted) as rows:
            for row in rows:
                _show(row, arguments.rounds)
        for row in tower_rows(wanted, arguments.blocks):
            _show(row, arguments.rounds)
        with first_token_rows(wanted, arguments.peers.split(","), arguments.layers) as rows:
            for row in rows:
                _show(row, arguments.rounds)


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.vision", description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument(
        "--rows", default="", metavar="WORDS",
        help="only rows whose name has one of these in it, such as 'preprocessing,tower bfloat16'",
    )  # fmt: skip
    parser.add_argument("--blocks", type=int, default=3, help="of the tower's 24")
    parser.add_argument("--layers", type=int, default=4, help="of the text model's 28")
    parser.add_argument("--peers", default="transformers,vllm", help="for the first token")
    return parser.parse_args()


def _show(row: Row, rounds: int) -> None:
    print(line(row, measure(row, rounds)), flush=True)


if __name__ == "__main__":
    main()

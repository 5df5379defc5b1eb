"""What 8 bits win: our engine beside itself, in one process, row by row in turns.

`python -m tests.bench.eight_bit [--rows TEXT] [--repeats N]` prints the medians and the ratios to
bfloat16 on the shape of Qwen3-0.6B. Both engines run when the machine is slow, or neither.
"""

from __future__ import annotations

import argparse
import itertools
import random
import time
from pathlib import Path
from statistics import median

from qwen_engine.config import EngineConfig
from qwen_engine.llm_engine import LLMEngine
from qwen_engine.sequence import SamplingParams
from tests.bench.work import ROWS, Row, Run, fresh
from tests.models.qwen3 import build_random_qwen3

VARIANTS: dict[str, dict[str, str]] = {
    "bfloat16": {},
    "weights int8": {"quantization": "int8"},
    "KV int8": {"kv_cache_dtype": "int8"},
    "KV fp8": {"kv_cache_dtype": "fp8"},
}
TOKENS = 16  # less than the other benchmarks: the ratio is what counts


def _decode(length: int) -> Row:
    def measure(run: Run, source: random.Random) -> float:
        prompt = fresh(source, length)
        run([prompt], 1)  # from now on all but the last block is found in the prefix cache
        first = run([prompt], 1)
        return TOKENS / (run([prompt], TOKENS + 1) - first)

    return Row(f"decode, one stream, context {length}", "tok/s", measure)


def _batch(count: int, length: int) -> Row:
    def measure(run: Run, source: random.Random) -> float:
        return count * TOKENS / run([fresh(source, length) for _ in range(count)], TOKENS)

    return Row(f"{count} × ({length} → {TOKENS})", "tok/s", measure)


def _rows() -> list[Row]:
    prompts = [row for row in ROWS if row.name.startswith("first token")]
    return [*prompts, _decode(32), _decode(2048), _batch(4, 16), _batch(16, 128)]


def start(model: Path, **settings: str) -> Run:
    """Load an engine; return what runs prompts on it and says the seconds."""
    engine = LLMEngine.from_config(
        EngineConfig(
            model_path=model, max_model_len=4096, num_gpu_blocks=160, block_size=32,
            max_num_seqs=32, max_num_batched_tokens=1024, **settings,  # type: ignore[arg-type]
        )
    )  # fmt: skip
    numbers = itertools.count()

    def run(prompts: list[list[int]], max_tokens: int) -> float:
        params = SamplingParams(max_tokens=max_tokens, temperature=0.0, ignore_eos=True)
        began = time.perf_counter()
        for prompt in prompts:
            engine.add_request(str(next(numbers)), prompt, params)
        while engine.has_unfinished():
            engine.step()
        return time.perf_counter() - began

    return run


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.eight_bit", description=__doc__)
    parser.add_argument("--rows", default="", help="only rows whose name has this in it")
    parser.add_argument("--repeats", type=int, default=5)
    arguments = parser.parse_args()
    model = build_random_qwen3()
    runs = {name: start(model, **settings) for name, settings in VARIANTS.items()}
    print("\n| work | " + " | ".join(runs) + " |\n|---" + "|---" * len(runs) + "|")
    for row in _rows():
        if arguments.rows not in row.name:
            continue
        found: dict[str, list[float]] = {name: [] for name in runs}
        for repeat in range(arguments.repeats):
            for name, run in runs.items():
                found[name].append(row.measure(run, random.Random(f"{row.name} {repeat}")))
        medians = {name: median(values) for name, values in found.items()}
        ratios = {
            n: median(a / b for a, b in zip(v, found["bfloat16"], strict=True))
            for n, v in found.items()
        }
        cells = [f"{medians[name]:.3g} {row.unit} ({ratios[name]:.2f} ×)" for name in runs]
        print(f"| {row.name} | " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    main()

"""`python -m tests.bench.overhead`: what a step costs beside the model, by number of streams.

The executor is a stub that packs each batch as the real one does and then makes up tokens. So the
columns are all that the engine adds to a decode step: choosing and accounting for it, packing it,
and turning its tokens into text. Cost per token must not grow with the number of streams.
"""

from __future__ import annotations

import argparse
import json
import random
import time
from dataclasses import asdict, dataclass
from statistics import median

from qwen_engine.sequence import SamplingParams
from qwen_engine.tokenizer import Tokenizer
from tests.bench.stub import VOCAB_SIZE, make_stub_engine
from tests.models.smollm2 import build_smollm2

TARGET_MS = 3.0  # a step, at 256 streams


@dataclass(frozen=True, slots=True)
class Overhead:
    """Milliseconds of a decode step, medians."""

    streams: int
    loop_ms: float  # schedule, account, append
    pack_ms: float  # block tables and slots into tensors
    text_ms: float

    @property
    def step_ms(self) -> float:
        return self.loop_ms + self.pack_ms + self.text_ms


def measure(streams: int, *, num_steps: int, context: int, tokenizer: Tokenizer) -> Overhead:
    """Run `streams` at once for so many decode steps, from a context of so many tokens on."""
    blocks = streams * (-(-(context + num_steps + 2) // 16) + 1)
    engine, worker = make_stub_engine(
        num_gpu_blocks=blocks, max_num_seqs=streams, max_num_batched_tokens=streams * context
    )
    source = random.Random(streams)
    params = SamplingParams(max_tokens=num_steps + 1, temperature=0.0, ignore_eos=True)
    texts = {}
    for index in range(streams):
        prompt = [source.randrange(VOCAB_SIZE) for _ in range(context)]
        engine.add_request(str(index), prompt, params)
        texts[str(index)] = tokenizer.detokenizer(prompt)
    engine.step()  # the prompts
    loops, packs, feeds = [], [], []
    for _ in range(num_steps):
        packed, start = worker.pack_seconds, time.perf_counter()
        outputs = engine.step()
        stepped = time.perf_counter()
        for output in outputs:
            texts[output.request_id].feed(output.token_ids)
        feeds.append(time.perf_counter() - stepped)
        packs.append(worker.pack_seconds - packed)
        loops.append(stepped - start - packs[-1])
    return Overhead(streams, *(1000 * median(some) for some in (loops, packs, feeds)))


def render(rows: list[Overhead]) -> str:
    lines = [
        "| streams | loop, ms | pack, ms | text, ms | step, ms | a token, µs |",
        "|---|---|---|---|---|---|",
    ]
    lines += [
        f"| {row.streams} | {row.loop_ms:.3f} | {row.pack_ms:.3f} | {row.text_ms:.3f} "
        f"| {row.step_ms:.3f} | {1000 * row.step_ms / row.streams:.1f} |"
        for row in rows
    ]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.overhead", description=__doc__)
    add = parser.add_argument
    add("--streams", default="1,8,64,256", help="numbers of streams (default: 1,8,64,256)")
    add("--steps", type=int, default=300, help="decode steps of each (default: 300)")
    add("--context", type=int, default=512, help="tokens of each prompt (default: 512)")
    add("-o", "--output", choices=("table", "json"), default="table")
    arguments = parser.parse_args()
    tokenizer = Tokenizer.from_folder(build_smollm2())
    rows = [
        measure(int(n), num_steps=arguments.steps, context=arguments.context, tokenizer=tokenizer)
        for n in arguments.streams.split(",")
    ]
    print(json.dumps([asdict(r) for r in rows]) if arguments.output == "json" else render(rows))


if __name__ == "__main__":
    main()

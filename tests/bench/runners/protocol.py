"""The loop of a runner: a job of prompts in on stdin, its seconds out on stdout, one JSON per line.

Imported in the peers' environments too: standard library only. A runner imports it before its
engine: what libraries print, also while they load, goes to stderr and can't mix with the answers.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable

Generate = Callable[[list[list[int]], int], int]  # prompts, tokens of each → tokens in all

_ANSWERS = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)


def serve_jobs(generate: Generate, **facts: object) -> None:
    """Answer jobs until stdin ends. Greedy, and never ending before the asked number of tokens."""
    _answer({"ready": True, **facts})
    for line in sys.stdin:
        job = json.loads(line)
        began = time.perf_counter()
        num_tokens = generate(job["prompts"], job["max_tokens"])
        seconds = time.perf_counter() - began
        _answer({"seconds": seconds, "num_tokens": num_tokens})


def _answer(fields: dict[str, object]) -> None:
    _ANSWERS.write(json.dumps(fields) + "\n")
    _ANSWERS.flush()

"""The loop of a runner: a job of prompts in on stdin, its seconds out on stdout, one JSON per line.

Imported in the peers' environments too: standard library only.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable

Generate = Callable[[list[list[int]], int], int]  # prompts, tokens of each → tokens in all


def serve_jobs(generate: Generate, **facts: object) -> None:
    """Answer jobs until stdin ends. Greedy, and never ending before the asked number of tokens."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what libraries print must not mix with the answers
    answers.write(json.dumps({"ready": True, **facts}) + "\n")
    answers.flush()
    for line in sys.stdin:
        job = json.loads(line)
        began = time.perf_counter()
        num_tokens = generate(job["prompts"], job["max_tokens"])
        seconds = time.perf_counter() - began
        answers.write(json.dumps({"seconds": seconds, "num_tokens": num_tokens}) + "\n")
        answers.flush()

"""One side and one kind of work in a process of its own.

Reads a job and prints its figures, or an error, as JSON.

    python -m qwen_engine.comparison '{"side": "transformers", "work": "speed", …}'

Started by `command`, which makes the job.
"""

from __future__ import annotations

import json
import os
import sys
from dataclasses import asdict
from typing import Any

from qwen_engine.bench_flags import bench_parser, bench_settings
from qwen_engine.comparison.work import Load, measure
from qwen_engine.errors import EngineError
from qwen_engine.planning import PlanningError


def run_job(job: dict[str, Any]) -> dict[str, Any]:
    """Build the side, do the work, return its figures (and the facts, where they are ours)."""
    from qwen_engine.comparison.sides import EngineSide, Facts, TransformersSide

    load, work = Load(**job["load"]), job["work"]
    if job["side"] == "transformers":
        return {"figures": measure(TransformersSide(Facts(**job["facts"])), work, load)}
    parser = bench_parser()
    settings = bench_settings(parser, parser.parse_or_exit(job["words"]))
    assert settings.engine is not None
    side = EngineSide(settings.engine, work, load)
    return {"figures": measure(side, work, load), "facts": asdict(side.facts)}


def main() -> int:
    answer, sys.stdout = sys.stdout, sys.stderr  # libraries print what they like
    try:
        result = run_job(json.loads(sys.argv[1]))
    except (EngineError, PlanningError, OSError, RuntimeError) as error:
        print(json.dumps({"error": str(error)}), file=answer)
        return 1
    print(json.dumps(result), file=answer, flush=True)
    os._exit(0)  # nothing is left to tear down in order


if __name__ == "__main__":
    sys.exit(main())

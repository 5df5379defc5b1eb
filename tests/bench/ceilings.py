"""What the machine can do: read bandwidth, and the rate of matrix products with packed weights.

Run as a process of its own on the same cores as the engines, between their rounds:
`python -m tests.bench.ceilings` prints JSON.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable

import torch

ROUNDS = 5


def main() -> None:
    torch.set_grad_enabled(False)
    rates = {name: _gemm_rate(dtype) for name, dtype in _DTYPES.items()}
    print(json.dumps({"read_bytes_per_second": _read_rate(), "gemm_flops_per_second": rates}))


_DTYPES = {"bfloat16": torch.bfloat16, "float32": torch.float32}


def _best(work: Callable[[], object]) -> float:
    """Return the seconds of the fastest of some rounds: the ceiling, not the average."""
    times = []
    for _ in range(ROUNDS):
        began = time.perf_counter()
        work()
        times.append(time.perf_counter() - began)
    return min(times)


def _read_rate() -> float:
    """Sum 1 GiB, much more than any cache."""
    data = torch.ones(2**28)
    return data.nbytes / _best(data.sum)


def _gemm_rate(dtype: torch.dtype) -> float:
    """Multiply 1024 rows by the feed-forward matrix of Qwen3-0.6B, packed by oneDNN if it can.

    0 where it cannot: bfloat16 on a processor that has no instruction for it.
    """
    rows, inner, outer = 1024, 1024, 6144
    x, weight = torch.randn(rows, inner).to(dtype), torch.randn(outer, inner).to(dtype)
    try:
        packed = torch.ops.mkldnn._reorder_linear_weight(weight, rows)
    except RuntimeError:
        return 0.0

    def work() -> object:
        return torch.ops.mkldnn._linear_pointwise(x, packed, None, "none", [], "")

    return 2 * rows * inner * outer / _best(work)


if __name__ == "__main__":
    main()

"""Which vLLM: the releases whose defaults and memory profile differ, as facts with their source.

Called by `vllm_step` and `vllm_memory`, which ask for facts and never compare versions.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from qwen_engine.planning.errors import InvalidDemandError

# Where a report names no release: V1 as it was through most of 2025.
_UNSTATED = (0, 11, 0)
_NUMBER = re.compile(r"(\d+)\.(\d+)(?:\.(\d+|x))?")


@dataclass(frozen=True, slots=True)
class VllmVersion:
    """A release of vLLM; `is_v0` where the first engine runs in it."""

    number: tuple[int, int, int] = (0, 29, 0)
    is_v0: bool = False

    @property
    def default_utilization(self) -> float:
        """Raised when graphs began to count (vllm/config/cache.py)."""
        return 0.92 if self.counts_graphs else 0.9

    @property
    def counts_graphs(self) -> bool:
        """CUDA graphs are estimated and taken off the budget; before, they came on top of it."""
        return not self.is_v0 and self.number >= (0, 21, 0)

    @property
    def loads_packed_kernels(self) -> bool:
        """Kernels for packed weights take workspaces of their own during the profile run."""
        return not self.is_v0 and self.number >= (0, 21, 0)

    @property
    def sorts_logits(self) -> bool:
        """The sampler sorted all logits; from 0.17 a Triton kernel selects without sorting."""
        return self.is_v0 or self.number < (0, 17, 0)

    @property
    def has_large_defaults_everywhere(self) -> bool:
        """0.8.0 to 0.8.2 ran 1,024 sequences on every card."""
        return not self.is_v0 and (0, 8, 0) <= self.number < (0, 8, 3)

    @property
    def has_symmetric_memory(self) -> bool:
        """Tensor parallel over NVLink keeps buffers of symmetric memory and fused all-reduce."""
        return not self.is_v0 and self.number >= (0, 17, 0)

    @property
    def caches_placeholders(self) -> bool:
        """The encoder cache held a row for every placeholder of a video, embedding or not.

        Until vllm-project/vllm pull request 30475 (December 2025).
        """
        return not self.is_v0 and self.number < (0, 13, 0)


NEWEST = VllmVersion()  # what a plan assumes where nothing else is said


def parse_version(text: str | None) -> VllmVersion:
    """Read a release as people write it: `0.11.0`, `0.8.5 (V0)`, `~0.12`, `V1, not stated`.

    Raises:
        InvalidDemandError: digits that are no release.
    """
    said = text or ""
    match = _NUMBER.search(said)
    number = (
        (int(match[1]), int(match[2]), 0 if match[3] in (None, "x") else int(match[3]))
        if match
        else _UNSTATED
    )
    if match and number > (9, 0, 0):
        raise InvalidDemandError("engine_version", said, "is no release of vLLM, such as 0.29.0")
    is_v0 = "V0" in said or ("V1" not in said and number < (0, 8, 0))
    return VllmVersion(number, is_v0)

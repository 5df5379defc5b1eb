"""The vision tower at work: encodes what the scheduler orders, keeps it, hands out rows.

Owned by `worker`. A large picture takes longer than a step of text, so it is encoded between
steps, in pieces that are made to fit: whoever is being answered waits less than twice as long for
the next word. Decides nothing.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Generator
from weakref import WeakKeyDictionary

import numpy as np
import torch

from qwen_engine.config import EngineConfig
from qwen_engine.errors import ConfigError
from qwen_engine.host_memory import HostMemory
from qwen_engine.model_config import ModelConfig
from qwen_engine.models.decoder import VisualRows
from qwen_engine.models.vision import Pixels, VisionTower
from qwen_engine.models.vision_pace import Pace
from qwen_engine.sequence import EncoderOrders, ScheduledBatch, Sequence
from qwen_engine.vision.media import Media
from qwen_engine.vision.positions import PromptPositions
from qwen_engine.vision.settings import ProcessorSettings
from qwen_engine.vision.spans import overlaps

# Where no step of text has to wait: until commands (new requests, aborts) are looked at again.
SECONDS_ALONE = 0.1
# Of the time that a step of text took: what comes after it and what pushes its weights out of the
# processor's caches must fit into the double too (tests/bench/picture_gap.py: with 0.7 the gap at
# the 99th percentile is 1.8 to 2.3 times that without a picture, with 0.5 it is 1.4 to 1.6).
SHARE_OF_STEP = 0.5

Run = Generator[None, None, torch.Tensor]


class Encoder:
    """Embeddings by the content's key, and the runs that are to give more."""

    def __init__(self, tower: VisionTower) -> None:
        self._tower = tower
        self._kept: dict[bytes, torch.Tensor] = {}
        self._runs: OrderedDict[bytes, Run] = OrderedDict()
        self._pace = Pace()
        self._ready: list[bytes] = []
        self.most_bytes = 0  # that embeddings took so far
        self._positions: WeakKeyDictionary[Sequence, PromptPositions] = WeakKeyDictionary()

    def obey(self, orders: EncoderOrders) -> None:
        """Forget and start as the scheduler says."""
        for key in orders.forget:
            self._kept.pop(key, None)
            self._runs.pop(key, None)
        for item in orders.encode:
            self._runs[item.key] = self._tower.run([_pixels(item, self._tower)], self._pace)

    def work(self, seconds: float) -> None:
        """Encode for so long, but one piece at the least."""
        self._pace.start(seconds)
        while self._runs:
            key, run = next(iter(self._runs.items()))
            began = time.monotonic()
            try:
                next(run)
            except StopIteration as result:
                self._keep(key, result.value)
            self._pace.took(time.monotonic() - began)
            if self._pace.has_ended:
                return

    def _keep(self, key: bytes, encoded: torch.Tensor) -> None:
        del self._runs[key]
        self._kept[key] = encoded
        kept = sum(each.nbytes for each in self._kept.values())
        self.most_bytes = max(self.most_bytes, kept)
        self._ready.append(key)

    def take_ready(self) -> list[bytes]:
        """Return, once, the keys of what is complete."""
        ready, self._ready = self._ready, []
        return ready

    def rows(self, batch: ScheduledBatch) -> VisualRows | None:
        """Return which rows of the step are pictures, and their embeddings; None: none are."""
        rows: list[torch.Tensor] = []
        values: list[torch.Tensor] = []
        first = 0
        for entry in batch.entries:
            sequence = entry.sequence
            for part in overlaps(sequence.spans, entry.start, entry.num_tokens):
                start = first + part.offset
                rows.append(torch.arange(start, start + part.num_tokens))
                kept = self._kept[sequence.media[part.item].key]
                values.append(kept[part.first_row : part.first_row + part.num_tokens])
            first += entry.num_tokens
        if not rows:
            return None
        packed = torch.cat(values)
        return VisualRows(torch.cat(rows).to(packed.device), packed)

    def positions(self, batch: ScheduledBatch) -> torch.Tensor | None:
        """Return [3, num_tokens] if any of the step's prompts has pictures."""
        if not any(entry.sequence.spans for entry in batch.entries):
            return None
        parts = [
            self._positions_of(entry.sequence).cut(entry.start, entry.num_tokens)
            for entry in batch.entries
        ]
        return torch.from_numpy(np.concatenate(parts, axis=1))

    def _positions_of(self, sequence: Sequence) -> PromptPositions:
        found = self._positions.get(sequence)
        if found is None:
            found = PromptPositions(sequence.num_prompt_tokens, sequence.spans)
            self._positions[sequence] = found
        return found


def allocate_tower(
    config: EngineConfig,
    model_config: ModelConfig,
    *,
    dtype: torch.dtype,
    device: torch.device,
    memory: HostMemory | None = None,
) -> VisionTower | None:
    """Return the vision tower, not yet filled, if there are to be pictures.

    memory: a CPU's, of which the parameters take theirs.

    Raises:
        ConfigError: there are to be, but the model has none.
    """
    limit = config.encoder_cache_tokens
    if limit == 0:
        return None
    if model_config.vision is None:
        why = "this model has no vision tower: leave it at 0"
        raise ConfigError("encoder_cache_tokens", limit, why)
    settings = ProcessorSettings.from_folder(config.model_path)
    return VisionTower.allocate(
        model_config.vision,
        mean=settings.mean,
        std=settings.std,
        dtype=dtype,
        device=device,
        memory=memory,
    )


def _pixels(item: Media, tower: VisionTower) -> Pixels:
    vision = tower.vision
    values = torch.frombuffer(item.patches, dtype=torch.uint8)
    frames = 1 if item.kind == "image" else vision.temporal_patch_size
    shape = (-1, vision.in_channels, frames, vision.patch_size**2)
    return Pixels(values.view(shape), item.grid)

"""The two sides: our engine as the user's flags set it up, and transformers' `generate`.

Each is built in a process of its own. What ours was planned to be (`Facts`) is what the other is
then given: the same folder, type, device and number of threads.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from qwen_engine.comparison.work import Load, Work
from qwen_engine.errors import ConfigError, StepFailedError
from qwen_engine.launch import launch
from qwen_engine.model_config import ModelConfig
from qwen_engine.options import EngineOptions
from qwen_engine.sequence import SamplingParams

if TYPE_CHECKING:
    from qwen_engine.llm_engine import LLMEngine


@dataclass(frozen=True, slots=True)
class Facts:
    """What both sides have in common; found out by ours, which plans."""

    folder: str
    dtype: str
    device: str
    num_threads: int
    model_max_len: int  # tokens the model was made for
    memory_bytes: int  # that the plan may take in all


class _Memory:
    """The memory of this process: resident on a CPU, the allocator's on CUDA."""

    def __init__(self, device: str) -> None:
        self._is_cuda = device == "cuda"

    def reset_peak(self) -> None:
        if self._is_cuda:
            torch.cuda.reset_peak_memory_stats()
        else:
            # proc(5): writing 5 sets the peak resident size to the current one.
            Path("/proc/self/clear_refs").write_text("5")

    def peak_bytes(self) -> int:
        if self._is_cuda:
            return torch.cuda.max_memory_allocated()
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
        raise ConfigError("device", "cpu", "memory can be measured on Linux only: no VmHWM")


class EngineSide(_Memory):
    """Ours. The pool is as large as the work needs, so the process's memory says what that is."""

    def __init__(self, options: EngineOptions, work: Work, load: Load) -> None:
        """Load the model; raises what `launch` raises."""
        launched = launch(_fitted(options, work, load), lambda _: None)
        self._engine: LLMEngine = launched.engine
        self._numbers = itertools.count()
        config, plan = launched.config, launched.plan
        super().__init__(config.device)
        self.facts = Facts(
            folder=str(config.model_path),
            dtype=config.dtype,
            device=config.device,
            num_threads=torch.get_num_threads(),
            model_max_len=launched.engine.model_config.max_len,
            memory_bytes=int(plan.device.memory_bytes * plan.gpu_memory_utilization),
        )

    def generate(self, prompts: list[list[int]], max_tokens: int) -> list[list[int]]:
        params = SamplingParams(max_tokens=max_tokens, temperature=0.0, ignore_eos=True)
        answers: dict[str, list[int]] = {}
        for prompt in prompts:
            name = str(next(self._numbers))
            answers[name] = []
            self._engine.add_request(name, prompt, params)
        while self._engine.has_unfinished():
            for output in self._engine.step():
                answers[output.request_id] += output.token_ids
        return list(answers.values())


def _fitted(options: EngineOptions, work: Work, load: Load) -> EngineOptions:
    """Return options for a pool that holds the work and hardly more.

    Each request may leave a block half empty, and the watermark is 1 %.
    """
    demands = options.demands
    block_size = demands.block_size or 32
    num_requests = 2 * load.at_once
    num_blocks = -(-load.most_tokens(work) // block_size) + num_requests
    return replace(
        options,
        demands=replace(
            demands,
            block_size=block_size,
            max_model_len=demands.max_model_len or max(load.longest_request(work), 32),
            max_num_seqs=num_requests,
            num_gpu_blocks_override=num_blocks + num_blocks // 50,
            swap_space=0.0,
        ),
    )


class TransformersSide(_Memory):
    """transformers' own `generate`, with its default cache and attention."""

    def __init__(self, facts: Facts) -> None:
        from transformers import AutoModelForCausalLM, AutoModelForImageTextToText, GenerationConfig

        super().__init__(facts.device)
        torch.set_num_threads(facts.num_threads)
        is_text = ModelConfig.from_folder(Path(facts.folder)).traits.skipped_prefix is None
        auto: Any = AutoModelForCausalLM if is_text else AutoModelForImageTextToText
        model = auto.from_pretrained(
            facts.folder, dtype=getattr(torch, facts.dtype), local_files_only=True
        )
        self._model = model.to(facts.device).eval()
        self._model.generation_config = GenerationConfig(do_sample=False, pad_token_id=0)  # no eos
        self._device = facts.device

    def generate(self, prompts: list[list[int]], max_tokens: int) -> list[list[int]]:
        ids = torch.tensor(prompts, device=self._device)
        with torch.inference_mode():
            output = self._model.generate(
                ids, attention_mask=torch.ones_like(ids), max_new_tokens=max_tokens
            )
        answers: list[list[int]] = output[:, ids.shape[1] :].tolist()
        if any(len(answer) != max_tokens for answer in answers):
            raise StepFailedError(f"transformers ended an answer before {max_tokens} tokens")
        return answers

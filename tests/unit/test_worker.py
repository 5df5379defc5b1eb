"""The worker: threads within the container's limit, and settings the device cannot meet."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from qwen_engine.config import EngineConfig
from qwen_engine.device import read_cpu_limit
from qwen_engine.errors import CheckpointError, ConfigError
from qwen_engine.llm_engine import LLMEngine
from qwen_engine.sequence import SamplingParams
from tests.models.tiny import build_tiny


@pytest.mark.parametrize(
    ("content", "limit"),
    [("max 100000", None), ("200000 100000", 2.0), ("50000 100000", 0.5), ("nonsense", None)],
)
def test_the_cpu_limit_of_cgroup_v2_is_read(
    tmp_path: Path, content: str, limit: float | None
) -> None:
    (tmp_path / "cpu.max").write_text(content + "\n")
    assert read_cpu_limit(tmp_path) == limit


@pytest.mark.parametrize(("quota", "limit"), [("-1", None), ("150000", 1.5)])
def test_the_cpu_limit_of_cgroup_v1_is_read(
    tmp_path: Path, quota: str, limit: float | None
) -> None:
    (tmp_path / "cpu").mkdir()
    (tmp_path / "cpu" / "cpu.cfs_quota_us").write_text(quota)
    (tmp_path / "cpu" / "cpu.cfs_period_us").write_text("100000")
    assert read_cpu_limit(tmp_path) == limit


def test_without_cgroups_there_is_no_cpu_limit(tmp_path: Path) -> None:
    assert read_cpu_limit(tmp_path) is None


def make_config(**settings: object) -> EngineConfig:
    values = {"max_model_len": 64, "num_gpu_blocks": 8, **settings}
    return EngineConfig(model_path=build_tiny("qwen3-tied"), **values)  # type: ignore[arg-type]


def test_memory_is_measured_as_the_tensors_say() -> None:
    measured = LLMEngine.from_config(make_config(dtype="bfloat16")).measured
    assert measured.kv_cache_bytes == 8 * 16 * 2 * 2 * 2 * 32 * 2  # blocks … bytes
    assert 0 < measured.weights_bytes < measured.process_bytes


def test_a_pool_beyond_all_memory_is_refused_with_its_bytes() -> None:
    with pytest.raises(ConfigError, match=r"num_gpu_blocks.* bytes cannot be allocated"):
        LLMEngine.from_config(make_config(num_gpu_blocks=10**12))


def test_a_length_beyond_the_models_is_refused() -> None:
    with pytest.raises(ConfigError, match="at most 1024 tokens"):
        LLMEngine.from_config(make_config(max_model_len=1025))


@pytest.mark.skipif(torch.cuda.is_available(), reason="a CUDA device is there")
def test_a_device_that_is_not_there_is_refused() -> None:
    with pytest.raises(ConfigError, match="no CUDA device"):
        LLMEngine.from_config(make_config(device="cuda"))


def test_a_checkpoint_of_another_shape_is_refused(tmp_path: Path) -> None:
    other = build_tiny("qwen3-3q-1kv")
    (tmp_path / "config.json").write_bytes((other / "config.json").read_bytes())
    weights = build_tiny("qwen3-tied") / "model.safetensors"
    (tmp_path / "model.safetensors").symlink_to(weights)
    config = EngineConfig(model_path=tmp_path, max_model_len=64, num_gpu_blocks=8)
    with pytest.raises(CheckpointError, match=r"has shape .* asks for"):
        LLMEngine.from_config(config)


def test_a_step_that_fails_in_the_model_leaves_an_engine_that_serves(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    engine = LLMEngine.from_config(make_config(dtype="float32"))
    params = SamplingParams(max_tokens=4, temperature=0.0, ignore_eos=True)

    def answer(name: str) -> list[int]:
        engine.add_request(name, [5, 6, 7], params)
        ids: list[int] = []
        while engine.has_unfinished():
            ids += [i for output in engine.step() for i in output.token_ids]
        return ids

    before = answer("a")
    engine.add_request("b", [5, 6, 7], params)
    with monkeypatch.context() as patch:
        patch.setattr(torch.nn.functional, "embedding", None)
        with pytest.raises(TypeError):
            engine.step()
    assert engine.reset_after_failure() == ["b"]
    assert answer("c") == before

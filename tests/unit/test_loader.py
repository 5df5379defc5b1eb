"""The loader: each parameter exactly once, and a damaged or foreign checkpoint is named."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from qwen_engine.errors import CheckpointError, ModelNotFoundError
from qwen_engine.loader import LoadProgress, load_weights

A = torch.arange(12, dtype=torch.float32).view(3, 4)
B = torch.arange(5, dtype=torch.float32)


def make_targets(dtype: torch.dtype = torch.float32) -> dict[str, torch.Tensor]:
    return {"a": torch.zeros(3, 4, dtype=dtype), "b": torch.zeros(5, dtype=dtype)}


def write_raw(path: Path, header: Any, data: bytes = b"") -> None:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)


def test_a_single_file_fills_every_target(tmp_path: Path) -> None:
    save_file({"a": A, "b": B}, tmp_path / "model.safetensors", metadata={"format": "pt"})
    targets = make_targets()
    load_weights(tmp_path, targets)
    assert torch.equal(targets["a"], A)
    assert torch.equal(targets["b"], B)


def test_shards_named_by_an_index_are_all_read(tmp_path: Path) -> None:
    save_file({"a": A}, tmp_path / "one.safetensors")
    save_file({"b": B}, tmp_path / "two.safetensors")
    save_file({"c": B}, tmp_path / "unrelated.safetensors")  # not in the index: not ours
    index = {"weight_map": {"a": "one.safetensors", "b": "two.safetensors"}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    targets = make_targets()
    load_weights(tmp_path, targets)
    assert torch.equal(targets["b"], B)


def test_parts_of_a_fused_matrix_are_written_in_place(tmp_path: Path) -> None:
    save_file({"q": A, "k": -A[:1]}, tmp_path / "model.safetensors")
    fused = torch.zeros(4, 4)
    load_weights(tmp_path, {"q": fused[:3], "k": fused[3:]})
    assert torch.equal(fused, torch.cat((A, -A[:1])))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_dtypes_are_converted(tmp_path: Path, dtype: torch.dtype) -> None:
    save_file({"a": A.to(dtype), "b": B.to(dtype)}, tmp_path / "model.safetensors")
    targets = make_targets()
    load_weights(tmp_path, targets)
    assert torch.equal(targets["a"], A)


def test_progress_ends_at_the_total(tmp_path: Path) -> None:
    save_file({"a": A, "b": B}, tmp_path / "model.safetensors")
    seen: list[LoadProgress] = []
    load_weights(tmp_path, make_targets(), on_progress=seen.append)
    done = [progress.bytes_done for progress in seen]
    assert done == sorted(done)
    assert done[-1] == seen[-1].bytes_total == (tmp_path / "model.safetensors").stat().st_size


def test_redundant_tensors_are_skipped(tmp_path: Path) -> None:
    save_file({"a": A, "b": B, "extra": B.clone()}, tmp_path / "model.safetensors")
    load_weights(tmp_path, make_targets(), is_redundant=lambda name: name == "extra")


def test_a_folder_without_weights_is_named(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFoundError, match=r"no \*\.safetensors"):
        load_weights(tmp_path, make_targets())


def test_missing_parameters_are_named(tmp_path: Path) -> None:
    save_file({"a": A}, tmp_path / "model.safetensors")
    with pytest.raises(CheckpointError, match="lacks b") as caught:
        load_weights(tmp_path, make_targets())
    assert caught.value.names == ("b",)


def test_many_missing_parameters_are_counted(tmp_path: Path) -> None:
    save_file({"a": A}, tmp_path / "model.safetensors")
    targets = {"a": torch.zeros(3, 4), **{f"w{i}": torch.zeros(1) for i in range(9)}}
    with pytest.raises(CheckpointError, match=r"w0, w1, w2, w3, w4 and 4 more") as caught:
        load_weights(tmp_path, targets)
    assert len(caught.value.names) == 9


def test_left_over_tensors_are_named(tmp_path: Path) -> None:
    save_file({"a": A, "b": B, "stray": B.clone()}, tmp_path / "model.safetensors")
    with pytest.raises(CheckpointError, match="stray"):
        load_weights(tmp_path, make_targets())


def test_a_wrong_shape_is_named_with_both_shapes(tmp_path: Path) -> None:
    save_file({"a": A.T.contiguous(), "b": B}, tmp_path / "model.safetensors")
    with pytest.raises(CheckpointError, match=r"a has shape \[4, 3\].*\[3, 4\]"):
        load_weights(tmp_path, make_targets())


def test_a_name_in_two_shards_is_an_error(tmp_path: Path) -> None:
    save_file({"a": A, "b": B}, tmp_path / "one.safetensors")
    save_file({"b": B}, tmp_path / "two.safetensors")
    with pytest.raises(CheckpointError, match=r"b is in both one\.safetensors and two"):
        load_weights(tmp_path, make_targets())


def test_a_quantised_dtype_is_named(tmp_path: Path) -> None:
    save_file({"a": A.to(torch.float8_e4m3fn), "b": B}, tmp_path / "model.safetensors")
    with pytest.raises(CheckpointError, match="a has dtype F8_E4M3"):
        load_weights(tmp_path, make_targets())


def test_an_absent_shard_is_named(tmp_path: Path) -> None:
    index = {"weight_map": {"a": "gone.safetensors"}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(CheckpointError, match=r"gone\.safetensors"):
        load_weights(tmp_path, make_targets())


@pytest.mark.parametrize("text", ["", "{", "[]", '{"weight_map": 3}', "{}"])
def test_a_broken_index_is_named(tmp_path: Path, text: str) -> None:
    (tmp_path / "model.safetensors.index.json").write_text(text)
    with pytest.raises(CheckpointError, match=r"index\.json"):
        load_weights(tmp_path, make_targets())


def test_an_index_may_not_lead_out_of_its_folder(tmp_path: Path) -> None:
    index = {"weight_map": {"a": "../secret.safetensors"}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(CheckpointError, match="outside its folder"):
        load_weights(tmp_path, make_targets())


def test_a_file_cut_short_anywhere_is_damaged(tmp_path: Path) -> None:
    save_file({"a": A, "b": B}, tmp_path / "whole.safetensors")
    content = (tmp_path / "whole.safetensors").read_bytes()
    (tmp_path / "whole.safetensors").unlink()
    for length in [0, 1, 7, 8, 20, len(content) - 69, len(content) - 1]:
        (tmp_path / "model.safetensors").write_bytes(content[:length])
        with pytest.raises(CheckpointError, match=r"model\.safetensors"):
            load_weights(tmp_path, make_targets())


@pytest.mark.parametrize(
    "header",
    [
        b"not json",
        [],
        {"a": 3},
        {"a": {"dtype": "F32", "shape": [3, 4]}},
        {"a": {"dtype": "F32", "shape": [3, 4], "data_offsets": [0]}},
        {"a": {"dtype": "F32", "shape": [3, 4], "data_offsets": [0, "48"]}},
        {"a": {"dtype": "F32", "shape": [-3, -4], "data_offsets": [0, 48]}},
        {"a": {"dtype": "F32", "shape": [3, 5], "data_offsets": [0, 48]}},
        {"a": {"dtype": "F32", "shape": [3, 4], "data_offsets": [48, 0]}},
        {"a": {"dtype": "F32", "shape": [3, 3], "data_offsets": [12, 48]}},  # a gap
        {
            "a": {"dtype": "F32", "shape": [3, 4], "data_offsets": [0, 48]},
            "b": {"dtype": "F32", "shape": [5], "data_offsets": [28, 48]},  # an overlap
        },
        {"a": {"dtype": "F32", "shape": [3, 4], "data_offsets": [0, 4800]}},
    ],
)
def test_a_header_that_cannot_be_is_damaged(tmp_path: Path, header: Any) -> None:
    write_raw(tmp_path / "model.safetensors", header, bytes(48))
    with pytest.raises(CheckpointError, match="not a sound safetensors file"):
        load_weights(tmp_path, make_targets())


def test_a_header_length_beyond_the_file_is_damaged(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes((2**63).to_bytes(8, "little") + b"{}")
    with pytest.raises(CheckpointError, match=str(2**63)):
        load_weights(tmp_path, make_targets())


def _file_pages_bytes() -> int:
    status = Path("/proc/self/status").read_text()
    return int(status.split("RssFile:")[1].split()[0]) * 1024


def test_pages_of_the_file_are_let_go_while_loading(tmp_path: Path) -> None:
    each = 8 * 1024 * 1024
    tensors = {f"w{i}": torch.full((each,), i, dtype=torch.uint8) for i in range(8)}
    tensors = {name: tensor.view(torch.bfloat16) for name, tensor in tensors.items()}
    save_file(tensors, tmp_path / "model.safetensors")
    targets = {name: torch.zeros_like(tensor) for name, tensor in tensors.items()}
    before = _file_pages_bytes()
    grown: list[int] = []
    load_weights(
        tmp_path, targets, on_progress=lambda _: grown.append(_file_pages_bytes() - before)
    )
    assert torch.equal(targets["w7"], tensors["w7"])
    assert max(grown) < 2 * each, "the mapping holds more than the tensor being read"

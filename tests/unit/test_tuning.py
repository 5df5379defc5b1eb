"""The appliance plans for the machine it finds itself on."""

import json

import pytest

from qwen_engine import tuning
from qwen_engine.planning import Demands, InvalidConfigError, find_model
from tests.models.tiny import build_tiny

GIB = 2**30


def test_a_given_memory_size_wins_over_what_the_machine_says():
    device = tuning.local_device("cpu", 3 * GIB)
    assert (device.kind, device.memory_bytes, device.dedicated) == ("cpu", 3 * GIB, True)


@pytest.mark.parametrize("name", ["memory.max", "memory/memory.limit_in_bytes"])
def test_the_memory_limit_of_either_cgroup_version_is_read(tmp_path, name):
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).write_text("2147483648\n")
    assert tuning._cgroup_limit(tmp_path) == (2 * GIB, str(tmp_path / name))


def test_an_unlimited_cgroup_is_no_limit(tmp_path):
    (tmp_path / "memory.max").write_text("max\n")
    assert tuning._cgroup_limit(tmp_path)[0] is None


def test_without_a_limit_the_whole_machine_is_seen_as_shared(monkeypatch):
    monkeypatch.setattr(tuning, "_cgroup_limit", lambda: (None, ""))
    device = tuning.local_device("cpu")
    assert not device.dedicated
    assert device.memory_bytes > GIB


def test_a_limit_above_the_machines_memory_is_no_limit(monkeypatch):
    monkeypatch.setattr(tuning, "_cgroup_limit", lambda: (2**63 - 4096, "file"))
    assert not tuning.local_device("cpu").dedicated


def test_a_folder_and_its_config_file_give_the_same_shape():
    folder = build_tiny("qwen3-tied")
    assert tuning.read_shape(folder) == tuning.read_shape(folder / "config.json")


def test_a_folder_is_planned_for_a_cpu():
    plan = tuning.plan_for_this_machine(
        build_tiny("qwen3-tied"), device="cpu", demands=Demands(), memory_bytes=2 * GIB
    )
    assert plan.max_model_len == 1024
    assert plan.num_blocks == plan.max_num_seqs * 1024 // plan.block_size


@pytest.mark.parametrize(
    ("text", "message"),
    [(None, "no such file"), ("{", "cannot be read as JSON"), ("[]", "must hold an object")],
)
def test_a_config_that_cannot_be_read_names_the_file(tmp_path, text, message):
    if text is not None:
        (tmp_path / "config.json").write_text(text)
    with pytest.raises(InvalidConfigError, match=message):
        tuning.read_shape(tmp_path)


def test_a_published_config_gives_the_catalogues_shape(tmp_path):
    model = find_model("Qwen/Qwen3-8B")
    (tmp_path / "config.json").write_text(
        json.dumps(
            {
                "architectures": ["Qwen3ForCausalLM"],
                "hidden_size": 4096,
                "intermediate_size": 12288,
                "num_hidden_layers": 36,
                "num_attention_heads": 32,
                "num_key_value_heads": 8,
                "head_dim": 128,
                "vocab_size": 151936,
                "tie_word_embeddings": False,
                "max_position_embeddings": 40960,
                "torch_dtype": "bfloat16",
            }
        )
    )
    found = tuning.read_shape(tmp_path)
    assert found.kv_bytes_per_token(2) == model.kv_bytes_per_token(2) == 147456

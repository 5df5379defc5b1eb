"""`qwen-engine plan`: every form of the question, every form of the answer."""

import json
import resource
import shlex
import subprocess
import sys

import pytest
import yaml

from qwen_engine import plan_command
from qwen_engine.cli import run
from qwen_engine.errors import ModelNotFoundError
from qwen_engine.planning import published_ids

MOE = "Qwen/Qwen3-235B-A22B-FP8"


def plan(capsys, *words):
    assert run(["plan", *words]) == 0
    return capsys.readouterr().out


def refusal(capsys, *words):
    with pytest.raises(SystemExit) as caught:
        run(["plan", *words])
    return caught.value.code, capsys.readouterr().err


def test_the_table_has_a_bar_for_each_line(capsys):
    text = plan(capsys, "Qwen/Qwen3-8B", "--gpu", "NVIDIA-L4")
    weights = next(line for line in text.splitlines() if line.startswith("weights"))
    assert "█" * 13 in weights


def test_the_flags_are_a_command_to_paste(capsys):
    words = shlex.split(plan(capsys, "Qwen/Qwen3-8B", "--gpu", "NVIDIA-L4", "-o", "flags"))
    assert words[:3] == ["qwen-engine", "serve", "Qwen/Qwen3-8B"]
    assert "--swap-space" in words
    asked = ["--engine", "vllm", "--gpu", "NVIDIA-H200", "--gpu-count", "8", "-o", "flags"]
    words = shlex.split(plan(capsys, MOE, *asked))
    assert words[:3] == ["vllm", "serve", MOE]
    assert words[words.index("--tensor-parallel-size") + 1] == "2"
    assert "--swap-space" not in words


def test_vllm_is_planned_on_as_many_gpus_as_are_asked_for(capsys):
    asked = ["--engine", "vllm", "--gpu", "NVIDIA-H200", "-tp", "4", "-o", "json"]
    found = json.loads(plan(capsys, MOE, *asked))
    assert found["device"]["count"] == 4
    code, said = refusal(capsys, MOE, "--engine", "vllm", "--gpu", "NVIDIA-H200", "-tp", "8")
    assert (code, "no multiple of the FP8 blocks' 128" in said) == (1, True)
    code, said = refusal(capsys, "Qwen/Qwen3-8B", "--gpu", "NVIDIA-L4", "-tp", "2")
    assert (code, "--engine vllm" in said) == (1, True)


def test_an_unlisted_card_is_planned_from_memory_and_capability(capsys):
    asked = ["--gpu-memory-mib", "24576", "--compute-capability", "7.5", "-o", "yaml"]
    found = yaml.safe_load(plan(capsys, "Qwen/Qwen3-4B", *asked))
    assert found["device"]["capability"] == "7.5"
    assert found["model"]["dtype"] == "float16"
    code, said = refusal(capsys, "Qwen/Qwen3-4B", "--gpu", "L4", "--compute-capability", "8")
    assert (code, "no capability such as 8.9" in said) == (2, True)


def test_names_people_write_are_taken(capsys):
    asked = ["--gpu", "rtx 4090", "-o", "json"]
    found = json.loads(plan(capsys, "Qwen/Qwen3-8B", *asked))
    assert found["device"]["product"] == "NVIDIA-GeForce-RTX-4090"


def test_several_gpus_are_compared_with_the_winner_of_each_column(capsys):
    gpus = ["NVIDIA-L4", "NVIDIA-L40S", "NVIDIA-H200"]
    text = plan(capsys, "Qwen/Qwen3-14B", "--compare", *gpus)
    rows = {line.split()[0]: line for line in text.splitlines() if line.startswith("NVIDIA")}
    assert "no: too little memory" in rows["NVIDIA-L4"]
    assert rows["NVIDIA-H200"].count("*") == 3
    assert "*" not in rows["NVIDIA-L40S"]
    found = json.loads(plan(capsys, "Qwen/Qwen3-14B", "--compare", *gpus, "-o", "json"))
    assert [row["fits"] for row in found] == [False, True, True]
    assert found[2]["tokensPerSecondBound"] > 5 * found[1]["tokensPerSecondBound"]


def test_comparing_without_products_shows_a_usual_dozen(capsys):
    text = plan(capsys, "Qwen/Qwen3-0.6B", "--compare", "--max-model-len", "8K")
    assert "REQUESTS OF 8,192" in text
    assert len([line for line in text.splitlines() if " yes " in line]) == 13


def test_a_refusal_is_told_to_programs_with_its_ways_out(capsys):
    words = ["Qwen/Qwen3-8B", "--gpu", "NVIDIA-L4", "--max-model-len", "40K", "-o", "json"]
    with pytest.raises(SystemExit) as caught:
        run(["plan", *words])
    told = capsys.readouterr()
    assert (caught.value.code, told.err[:17]) == (1, "qwen-engine plan:")
    found = json.loads(told.out)
    assert found["fits"] is False
    ways = {way["kind"]: way["change"] for way in found["waysOut"]}
    assert ways["length"] == {"max_model_len": found["largestModelLen"]}
    assert ways["precision"] == {"quantization": "int8"}


def test_auto_is_the_longest_context_that_fits(capsys):
    asked = ["--gpu", "NVIDIA-L4", "--max-model-len", "auto", "-o", "json"]
    assert json.loads(plan(capsys, "Qwen/Qwen3-0.6B", *asked))["maxModelLen"] == 40_960


def test_a_plan_is_printed_in_half_a_second_of_work():
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    words = ["plan", "Qwen/Qwen3-8B", "--gpu", "NVIDIA-L4"]
    subprocess.run([sys.executable, "-m", "qwen_engine", *words], check=True, capture_output=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime < 0.5


def test_all_published_ids_are_listed(capsys):
    assert plan(capsys, "--list-models").split() == published_ids()


def test_an_id_outside_the_catalogue_is_asked_of_the_hub(capsys, monkeypatch):
    config = {
        "architectures": ["Qwen3ForCausalLM"], "hidden_size": 1024, "intermediate_size": 3072,
        "num_hidden_layers": 28, "num_attention_heads": 16, "num_key_value_heads": 8,
        "vocab_size": 151936, "max_position_embeddings": 40960, "dtype": "bfloat16",
        "tie_word_embeddings": True,
    }  # fmt: skip
    monkeypatch.setattr(plan_command, "fetch_config", lambda model, source: config)
    found = json.loads(plan(capsys, "acme/Own", "--gpu", "NVIDIA-L4", "-o", "json"))
    assert found["model"]["parameters"] == 596_049_920

    def refuse(model, source):
        raise ModelNotFoundError(model, "the hub is closed")

    monkeypatch.setattr(plan_command, "fetch_config", refuse)
    code, said = refusal(capsys, "acme/Own", "--gpu", "NVIDIA-L4")
    assert code == 1
    assert "the hub is closed" in said
    assert "spec.model.config" in said

"""The command line: vLLM's flags, what they mean here, and what is said of those we lack."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from qwen_engine import __version__, plan_command
from qwen_engine.cli import _serve_parser, _server_settings, run
from qwen_engine.errors import ModelNotFoundError
from qwen_engine.flags import NOT_YET
from qwen_engine.server.settings import ServerSettings


def settings_of(*words: str) -> ServerSettings:
    parser = _serve_parser()
    return _server_settings(parser, parser.parse_or_exit(["some/model", *words]))


def complaint(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    with pytest.raises(SystemExit) as caught:
        settings_of(*words)
    assert caught.value.code == 2
    return capsys.readouterr().err


def test_a_model_in_the_commands_place_is_served(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "tiny").mkdir()
    (tmp_path / "tiny" / "config.json").write_text("{}")
    monkeypatch.chdir(tmp_path)
    for word in ("Qwen/Qwen3-0.6B", "/models/x", "tiny"):
        with pytest.raises(SystemExit):
            run([word, "--port", "70000"])
        assert "qwen-engine serve: error: --port: 70000" in capsys.readouterr().err
    assert run(["srve"]) == 2
    assert "no command 'srve'" in capsys.readouterr().err


def test_what_the_planner_computes_is_left_to_it_unless_given() -> None:
    demands = settings_of().engine.demands
    assert (demands.max_model_len, demands.block_size, demands.dtype) == (None, None, "auto")
    demands = settings_of(
        "--max-model-len", "8K", "--block-size=64", "--dtype", "half"
    ).engine.demands
    assert (demands.max_model_len, demands.block_size, demands.dtype) == (8192, 64, "float16")


@pytest.mark.parametrize(
    ("text", "tokens"), [("8192", 8192), ("8k", 8000), ("8K", 8192), ("1.5k", 1500)]
)
def test_lengths_are_read_as_vllm_reads_them(text: str, tokens: int) -> None:
    assert settings_of("--max-model-len", text).engine.demands.max_model_len == tokens


def test_weights_may_be_made_int8() -> None:
    assert settings_of().engine.demands.quantization == "none"
    assert settings_of("--quantization", "int8").engine.demands.quantization == "int8"


@pytest.mark.parametrize(
    ("text", "taken"), [("auto", "auto"), ("int8", "int8"), ("fp8", "fp8"), ("fp8_e4m3", "fp8")]
)
def test_the_kv_cache_may_be_in_eight_bits(text: str, taken: str) -> None:
    assert settings_of("--kv-cache-dtype", text).engine.demands.kv_cache_dtype == taken


def test_underscores_do_for_dashes() -> None:
    assert settings_of("--max_model_len=4096").engine.demands.max_model_len == 4096


def test_the_model_may_be_a_flag() -> None:
    parser = _serve_parser()
    for words in (["--model", "a/b"], ["a/b"], ["a/b", "--model", "a/b"]):
        assert _server_settings(parser, parser.parse_or_exit(words)).engine.model == "a/b"


def test_a_second_port_answers_for_stats_except_in_a_pod(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    assert settings_of().stats_port == 3001
    assert settings_of("--stats-port", "0").stats_port == 0
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.0.0.1")
    assert settings_of().stats_port == 0
    assert settings_of("--stats-port", "3001").stats_port == 3001
    assert "--stats-port: 70000" in complaint(capsys, "--stats-port", "70000")


def test_several_names_can_be_served_and_several_keys_taken(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("QWEN_API_KEY", "from-env")
    settings = settings_of("--served-model-name", "a", "b", "--api-key", "k1", "--api-key", "k2")
    assert settings.engine.served_model_names == ("a", "b")
    assert settings.api_keys == ("k1", "k2", "from-env")


def test_a_chat_template_is_a_file_or_the_template_itself(tmp_path: Path) -> None:
    file = tmp_path / "template.jinja"
    file.write_text("{{ messages }}")
    assert settings_of("--chat-template", str(file)).engine.chat_template == "{{ messages }}"
    assert settings_of("--chat-template", "{{ 1 }}").engine.chat_template == "{{ 1 }}"


@pytest.mark.parametrize("name", sorted(NOT_YET))
def test_flags_of_vllm_that_we_lack_are_refused_by_name(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert f"--{name} is not supported by this version" in complaint(capsys, f"--{name}", "x")


def test_values_that_mean_what_is_true_here_anyway_are_accepted(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert settings_of("--tensor-parallel-size", "1", "--enforce-eager")
    assert "only 1 is" in complaint(capsys, "-tp", "2")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--trust-remote-code"], "no code from checkpoints"),
        (["--block-size", "17"], "--block-size"),
        (["--gpu-memory-utilization", "2"], "--gpu-memory-utilization"),
        (["--max-model-len", "0"], "no count of tokens"),
        (["--max-num-seqs", "0"], "--max-num-seqs"),
        (["--dtype", "int3"], "int3"),
        (["--quantization", "awq"], "must be none or int8"),
        (["--kv-cache-dtype", "fp8_e5m2"], "take int8 or fp8"),
        (["--port", "70000"], "--port"),
        (["--chat-template", "/nowhere/x.jinja"], "--chat-template"),
        (["--max-queue", "-1"], "--max-queue"),
        (["--frobnicate"], "--frobnicate"),
        (["--model", "other/model"], "different models"),
    ],
)
def test_what_cannot_be_is_said_in_one_sentence(
    words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert said in complaint(capsys, *words)


def test_a_missing_model_is_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    parser = _serve_parser()
    with pytest.raises(SystemExit):
        _server_settings(parser, parser.parse_or_exit([]))
    assert "MODEL is missing" in capsys.readouterr().err


def plan(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert run(["plan", *words]) == 0
    return capsys.readouterr().out


def test_plan_prints_the_same_as_json_and_yaml(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["Qwen/Qwen3-0.6B", "--cpu", "--memory", "8Gi", "--max-model-len", "4K"]
    as_json: dict[str, Any] = json.loads(plan(capsys, *words, "-o", "json"))
    assert yaml.safe_load(plan(capsys, *words, "-o", "yaml")) == as_json
    assert as_json["maxModelLen"] == 4096
    assert "--max-model-len" in plan(capsys, *words)


def test_plan_takes_a_folder_a_config_and_a_gpu_by_memory(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    config = {
        "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "hidden_size": 1024,
        "intermediate_size": 3072, "num_hidden_layers": 28, "num_attention_heads": 16,
        "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 151936, "rms_norm_eps": 1e-6,
        "max_position_embeddings": 40960, "tie_word_embeddings": True, "torch_dtype": "bfloat16",
    }  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps(config))
    gpu = ["--gpu", "NVIDIA-L4", "-o", "json"]
    published = json.loads(plan(capsys, "Qwen/Qwen3-0.6B", *gpu))
    for model in (str(tmp_path), str(tmp_path / "config.json")):
        found = json.loads(plan(capsys, model, *gpu))
        assert found["ledger"] == published["ledger"]
    own = plan(capsys, "Qwen/Qwen3-0.6B", "--gpu", "MY-CARD", "--gpu-memory-mib", "24576")
    assert "MY-CARD" in own


@pytest.mark.parametrize(
    "words",
    [
        ["Qwen/Unheard-Of", "--gpu", "NVIDIA-L4"],
        ["Qwen/Qwen3-0.6B", "--gpu", "UNHEARD-OF"],
        ["Qwen/Qwen3-32B", "--cpu", "--memory", "8Gi"],
    ],
)
def test_a_plan_that_cannot_be_ends_with_one_and_a_way_out(
    words: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def unreachable(model: str, source: object) -> dict[str, Any]:
        raise ModelNotFoundError(Path(model), "no network in this test")

    monkeypatch.setattr(plan_command, "fetch_config", unreachable)
    with pytest.raises(SystemExit) as caught:
        run(["plan", *words])
    assert caught.value.code == 1
    assert capsys.readouterr().err.startswith("qwen-engine plan: ")


def test_version_help_and_unknown_commands(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--version"]) == 0
    assert capsys.readouterr().out == f"qwen-engine {__version__}\n"
    assert run([]) == 0
    assert "serve MODEL" in capsys.readouterr().out
    assert run(["frobnicate"]) == 2
    assert "frobnicate" in capsys.readouterr().err


def test_help_and_plan_import_nothing_heavy() -> None:
    script = (
        "import sys; from qwen_engine.cli import run\n"
        "run(['plan', 'Qwen/Qwen3-0.6B', '--gpu', 'NVIDIA-L4'])\n"
        "try: run(['serve', '--help'])\n"
        "except SystemExit: pass\n"
        "heavy = {'torch', 'transformers', 'aiohttp', 'huggingface_hub'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("text", "counts"),
    [
        ('{"image": 4}', {"image": 4}),
        ('{"image": {"count": 4}, "video": 0}', {"image": 4, "video": 0}),
        ("image=4,video=1", {"image": 4, "video": 1}),
    ],
)
def test_limits_of_pictures_are_read_in_each_of_vllms_forms(
    text: str, counts: dict[str, int]
) -> None:
    engine = settings_of("--limit-mm-per-prompt", text).engine
    assert engine.demands.limit_mm_per_prompt == counts


def test_bounds_and_sources_of_pictures_are_read() -> None:
    engine = settings_of(
        "--mm-processor-kwargs", '{"max_pixels": 1048576}', "--encoder-cache-tokens", "4096",
        "--allowed-media-domains", "example.com", "example.org",
    ).engine  # fmt: skip
    assert engine.demands.mm_processor_kwargs == {"max_pixels": 1048576}
    assert engine.demands.encoder_cache_tokens == 4096
    assert engine.allowed_media_domains == ("example.com", "example.org")


@pytest.mark.parametrize(
    ("flag", "text", "complaint_part"),
    [
        ("--limit-mm-per-prompt", "image=many", "image=many: must be 0 or more"),
        ("--limit-mm-per-prompt", '{"image": {"count": 1, "width": 9}}', "only count is known"),
        ("--limit-mm-per-prompt", "{", "is no JSON"),
        ("--mm-processor-kwargs", "[1]", "is no object such as"),
        ("--encoder-cache-tokens", "-1", "must be at least 1"),
    ],
)
def test_a_flag_about_pictures_that_cannot_be_says_how_it_could(
    flag: str, text: str, complaint_part: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert complaint_part in complaint(capsys, flag, text)

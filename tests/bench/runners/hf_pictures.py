"""transformers about a picture: `python -m tests.bench.runners.hf_pictures MODEL QUESTION`.

A line in: a file in base64. A line out: the first token of the greedy answer.
"""

from __future__ import annotations

import base64
import json
import os
import sys
from io import BytesIO

_ANSWERS = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)  # what libraries print must not mix with the answers


def main(folder: str, question: str) -> None:
    import torch
    from PIL import Image
    from transformers import (
        AutoModelForImageTextToText,
        AutoTokenizer,
        GenerationConfig,
        Qwen2VLImageProcessorPil,
    )

    model = AutoModelForImageTextToText.from_pretrained(folder, dtype=torch.bfloat16).eval()
    model.generation_config = GenerationConfig(do_sample=False, pad_token_id=0)  # no eos
    processor = Qwen2VLImageProcessorPil.from_pretrained(folder)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    content = [{"type": "image"}, {"type": "text", "text": question}]
    prompt = tokenizer.apply_chat_template(
        [{"role": "user", "content": content}], add_generation_prompt=True, tokenize=False
    )
    pad = tokenizer.convert_ids_to_tokens(model.config.image_token_id)

    def answer(data: bytes) -> int:
        inputs = processor(Image.open(BytesIO(data)), return_tensors="pt")
        count = int(inputs["image_grid_thw"].prod()) // 4
        text = prompt.replace(pad, pad * count)
        ids = torch.tensor([tokenizer(text)["input_ids"]])
        with torch.inference_mode():
            output = model.generate(
                input_ids=ids, attention_mask=torch.ones_like(ids), max_new_tokens=1,
                mm_token_type_ids=(ids == model.config.image_token_id).int(), **inputs,
            )  # fmt: skip
        return int(output[0, -1])

    _say("ready")
    for line in sys.stdin:
        _say(answer(base64.b64decode(line)))


def _say(what: object) -> None:
    _ANSWERS.write(json.dumps(what) + "\n")
    _ANSWERS.flush()


if __name__ == "__main__":
    main(*sys.argv[1:])

"""transformers' `generate`: `python -m tests.bench.runners.hf_transformers MODEL [DTYPE]`."""

from __future__ import annotations

import sys

from tests.bench.runners.protocol import serve_jobs


def main(model: str, dtype: str = "bfloat16") -> None:
    import torch
    from transformers import AutoModelForCausalLM, GenerationConfig

    loaded = AutoModelForCausalLM.from_pretrained(model, dtype=getattr(torch, dtype)).eval()
    loaded.generation_config = GenerationConfig(do_sample=False, pad_token_id=0)  # no eos

    def generate(prompts: list[list[int]], max_tokens: int) -> int:
        ids = torch.tensor(prompts)
        with torch.inference_mode():
            output = loaded.generate(
                ids, attention_mask=torch.ones_like(ids), max_new_tokens=max_tokens
            )
        return int(output[:, ids.shape[1] :].numel())

    serve_jobs(generate)


if __name__ == "__main__":
    main(*sys.argv[1:])

"""vLLM's CPU build: `python -m tests.bench.runners.vllm_cpu MODEL [DTYPE]`."""

from __future__ import annotations

import sys

from tests.bench.runners.protocol import serve_jobs


def main(model: str, dtype: str = "bfloat16") -> None:
    from vllm import LLM, SamplingParams

    engine = LLM(
        model, dtype=dtype, max_model_len=4096, max_num_seqs=32, enable_prefix_caching=True
    )

    def generate(prompts: list[list[int]], max_tokens: int) -> int:
        params = SamplingParams(max_tokens=max_tokens, temperature=0.0, ignore_eos=True)
        asked = [{"prompt_token_ids": prompt} for prompt in prompts]
        outputs = engine.generate(asked, params, use_tqdm=False)
        return sum(len(output.outputs[0].token_ids) for output in outputs)

    serve_jobs(generate)


if __name__ == "__main__":
    main(*sys.argv[1:])

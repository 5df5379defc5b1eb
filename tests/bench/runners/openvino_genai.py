"""OpenVINO GenAI: `python -m tests.bench.runners.openvino_genai FOLDER [PRECISION]`.

FOLDER is what `optimum-cli export openvino` made. PRECISION is the inference hint: bf16 or f32.
"""

from __future__ import annotations

import sys

from tests.bench.runners.protocol import serve_jobs


def main(folder: str, precision: str = "bf16") -> None:
    import numpy as np
    import openvino as ov
    import openvino_genai as genai

    scheduler = genai.SchedulerConfig()
    scheduler.cache_size = 2  # GiB
    scheduler.max_num_seqs = 32
    scheduler.max_num_batched_tokens = 1024
    scheduler.enable_prefix_caching = True
    pipe = genai.ContinuousBatchingPipeline(
        folder, scheduler, "CPU", {"INFERENCE_PRECISION_HINT": precision}
    )

    def generate(prompts: list[list[int]], max_tokens: int) -> int:
        config = genai.GenerationConfig()
        config.max_new_tokens = max_tokens
        config.ignore_eos = True
        config.do_sample = False
        asked = [ov.Tensor(np.array([prompt], dtype=np.int64)) for prompt in prompts]
        results = pipe.generate(asked, [config] * len(asked))
        return sum(len(result.m_generation_ids[0]) for result in results)

    serve_jobs(generate)


if __name__ == "__main__":
    main(*sys.argv[1:])

"""The models, written for packed tokens and a paged KV cache.

Built and run by `worker`. They know tensors and `ModelConfig`; neither sequences nor files.
"""

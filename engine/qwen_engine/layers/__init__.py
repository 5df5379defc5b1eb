"""Building blocks of the models: linear maps, norms, rotary embedding, paged attention.

Used by `models` and `worker`. They know tensors, not sequences or requests.
"""

"""Pictures beside the peers: preprocessing, the vision tower, the first token of an answer.

`python -m tests.bench.vision`; see the README of the folder above.
"""

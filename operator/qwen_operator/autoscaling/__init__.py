"""How many replicas a deployment needs, from what its engines say of their blocks.

Pure: no kopf, no HTTP, no clock of its own. `samples` is what is seen, `history` what is kept of
it, `demand` what it means, `signal` the decision.
"""

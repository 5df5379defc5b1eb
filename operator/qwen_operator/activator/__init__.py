"""The activator: holds requests of QwenDeployments without a ready pod until there is one.

A process of its own (`qwen-operator activator`), because requests must outlast an operator that is
replaced, and whatever clients send must not slow down reconciliation. `targets` and `answers` are
pure; a `Door` is one QwenDeployment's listener, `forward` passes a request on, `reception` keeps
the doors and their EndpointSlices as the cluster says, `run` wires it all.
"""

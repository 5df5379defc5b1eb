"""Real Kubernetes on one Linux machine, for tests and for `make demo`.

Who calls it: pytest fixtures (tests/conftest.py), the demo (tests/demo) and people
(`python -m tests.cluster`). It knows Kubernetes and Linux; it must not know the operator.
"""

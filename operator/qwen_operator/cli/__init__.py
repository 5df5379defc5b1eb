"""`kubectl qwen`: plans, status, live blocks, logs and a chat, for people at a terminal.

Asks the cluster through kubectl itself, so every way to log in works, and judges with the
operator's own pure parts, so both say the same. Knows neither kopf nor the controller.
"""

"""What a model's text means besides words: thinking and calls of tools. Text in, text out."""

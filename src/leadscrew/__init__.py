"""leadscrew: recursive self-improvement of LLM agents, on your own scored tasks."""

"""An OpenAI-compatible HTTP server that answers every request with a search."""

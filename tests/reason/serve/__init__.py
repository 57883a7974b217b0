"""The server, from its parts to common clients."""

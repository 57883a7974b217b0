"""The server, from its parts to the clients people use."""

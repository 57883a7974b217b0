"""An `Engine` made of OpenAI-compatible servers: text goes out and text comes back.

Works with whoever speaks that protocol, so it counts on little: no ids, no hidden states, log-probabilities only where
they are asked for. What else differs between servers (what ended a text, whose defaults hold for a field that is not
sent) is found out or sent along, never assumed.

The client is the one that SGLang servers are asked with (`sglang_client`), not the vendor's package: waiting in front
of a full server, moving to another one and giving up are decided there over all requests, not request by request.
"""

"""The engine made of OpenAI-compatible servers: text is sent and text comes back.

It works with any server of that protocol and relies on little: no token ids, no hidden states, and log-probabilities
only where they are requested. What else differs between servers (whether the reply names what ended a text, whose
defaults hold for a field that is not sent) is probed or sent explicitly, never assumed.

Connections, retries and counters are those of the SGLang client (`reason.engines.http`), not those of the vendor's
package: waiting for a full server, changing to another one and giving up are decided over all requests, not for each.
"""

"""The engine and the reward-model reader made of SGLang servers.

A branch is token ids in one HTTP request and token ids in its reply. Prefixes are shared by the servers' own cache, so
all branches of a problem go to one server; requests at a server that dies are sent to another one.
"""

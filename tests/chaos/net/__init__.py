"""Env servers in network namespaces: other machines, with tokens, TLS, and cables that can be cut."""

"""Serving real vLLM engines: routers and cache tiers beside each other; see python -m serve -h."""

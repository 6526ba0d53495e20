"""API keys: what each may do and have, and whether a request brings one."""

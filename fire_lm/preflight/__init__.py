"""Preflight, which compiles the programs of a pod run before TPUs are reserved."""

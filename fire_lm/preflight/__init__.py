"""Preflight, which compiles all programs of a pod run before TPUs are reserved."""

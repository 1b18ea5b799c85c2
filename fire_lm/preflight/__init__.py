"""The compilation of all programs of a pod run before TPUs are reserved."""

"""Compiles every program of a pod run before a TPU is booked."""

"""The FLOPs of training by one stated convention, and the peak FLOP/s of a device."""

from __future__ import annotations

FLOPS_CONVENTION = (
    "6 N + 12 layers x width x length; N = parameters without embedding and encoding, plus the "
    "head; no causal discount"
)

# Peak dense bfloat16 FLOP/s of one device, by a substring of JAX's device_kind.
_PEAK_FLOPS = {
    "TPU v4": 275e12,
    "TPU v5 lite": 197e12,
    "TPU v5e": 197e12,
    "TPU v5": 459e12,
    "TPU v6": 918e12,
    "H100": 989e12,
    "H200": 989e12,
    "A100": 312e12,
}


def flops_per_token(num_parameters: int, num_layers: int, width: int, length: int) -> float:
    """Return the training FLOPs per token by `FLOPS_CONVENTION`; width = heads x head dim."""
    return 6.0 * num_parameters + 12.0 * num_layers * width * length


def peak_flops(device_kind: str) -> float | None:
    """Return the peak FLOP/s of one device, or None if none is published (CPUs)."""
    return next((peak for name, peak in _PEAK_FLOPS.items() if name in device_kind), None)

"""The FLOPs of training under an explicit convention, and the peak FLOP/s of devices."""

from __future__ import annotations

FLOPS_CONVENTION = (
    "6 N + 12 layers x width x length, or the window or chunk of a layer if it is shorter, or its "
    "segment and memory; N = parameters without embedding and encoding, plus the head; no causal "
    "discount"
)

# The peak dense bfloat16 FLOP/s of a device, keyed by a substring of JAX's device_kind, of
# which the first counts.
_PEAK_FLOPS = {
    "TPU v4": 275e12,
    "TPU v5 lite": 197e12,
    "TPU v5e": 197e12,
    "TPU v5": 459e12,
    "TPU v6": 918e12,
    "H100 PCIe": 756e12,
    "H100 NVL": 835e12,
    "H200 NVL": 835e12,
    "H100": 989e12,
    "H200": 989e12,
    "A100": 312e12,
}


def flops_per_token(num_parameters: int, num_layers: int, width: int, length: float) -> float:
    """Return the training FLOPs per token under `FLOPS_CONVENTION`.

    `width` is the number of attention heads times the head dimension, and `length` the number of
    keys per token, as a mean over the layers.
    """
    return 6.0 * num_parameters + 12.0 * num_layers * width * length


def peak_flops(device_kind: str) -> float | None:
    """Return the peak FLOP/s of one device, or None if the peak is unknown, as for CPUs."""
    return next((peak for name, peak in _PEAK_FLOPS.items() if name in device_kind), None)

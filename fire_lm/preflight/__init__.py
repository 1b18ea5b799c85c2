"""Every pod run compiled before a TPU is booked."""

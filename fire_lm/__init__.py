"""fire_lm: pretraining and length-generalisation studies for FIRE and its rivals.

Source: Li et al., "Functional Interpolation for Relative Positions Improves Long Context
Transformers" (ICLR 2024). Importing this package imports nothing heavy.
"""

import time

__version__ = "0.1.0"

STARTED = time.monotonic()  # of the process, nearly

"""The properties that every positional encoding must have, and their checks.

`fire-lm test-encoding` checks an encoding of your own package, and the repository's tests check all
files of configs/positions/. Each property is a function that raises an error if an encoding lacks
it. Nothing here needs the repository or pytest.
"""

from fire_lm.encoding_properties.loading import encodings_of
from fire_lm.encoding_properties.suite import PROPERTIES, Check, explain, holds, lacks

__all__ = ["PROPERTIES", "Check", "encodings_of", "explain", "holds", "lacks"]

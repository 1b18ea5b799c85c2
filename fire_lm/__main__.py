"""The entry point of `python -m fire_lm`, which is equivalent to the console script `fire-lm`."""

import sys

from fire_lm.cli import main

sys.exit(main())

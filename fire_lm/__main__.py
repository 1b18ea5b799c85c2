"""`python -m fire_lm` is the console script `fire-lm`."""

import sys

from fire_lm.cli import main

sys.exit(main())

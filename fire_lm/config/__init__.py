"""Experiments in gin files, with gin's holes closed. Configuration enters at the root only.

The rest of the code is undecorated functions and frozen dataclasses. The caller hands them to
`load` by name, and gin files bind their parameters:

    TRAIN_STEPS = 600_000               # a macro, `--gin.TRAIN_STEPS=5` overrides it
    pretrain.steps = %TRAIN_STEPS
    pretrain.data = @TextData()         # called when pretrain is called
    build_decoder.position = @FIRE      # handed over, for build_decoder to call
    FIRE.hidden_layers = 2

The grammar is that of gin-config 0.5.0, read with its own parser (`syntax`). Semantics and checks
are ours, without gin's global state. They differ from gin's:
- values are converted to the annotation of the parameter that takes them (`coercion`);
- whatever is misspelt, or could never be used, is an error (`checks`);
- `@Name` keeps the scope of the binding it stands in, even if it is called elsewhere (`bindings`);
- a macro is plain substitution: it opens no scope of its own;
- a file that is included twice is read once (`files`);
- `import my_package.my_encoding` makes the dataclasses of that module known (`configurables`).
"""

from fire_lm.config.checks import UnusedBinding
from fire_lm.config.differences import ABSENT, Difference, differences
from fire_lm.config.resolved import Config, load

__all__ = ["ABSENT", "Config", "Difference", "UnusedBinding", "differences", "load"]

"""The configuration of experiments by gin files, with checks that gin lacks.

Configuration is confined to the root of a program. The rest of the code consists of undecorated
functions and frozen dataclasses, which the root passes to `load` by name. Gin files bind the
parameters of these functions and dataclasses:

    TRAIN_STEPS = 600_000               # a macro, which `--gin.TRAIN_STEPS=5` overrides
    pretrain.train_steps = %TRAIN_STEPS
    pretrain.data = @TextData()         # called when pretrain is called
    build_decoder.position = @FIRE      # passed as a callable, which build_decoder calls
    FIRE.hidden_layers = 2

The grammar is that of gin-config 0.5.0, whose parser reads the files (`syntax`). The semantics and
the checks are implemented here, without global state, and differ from gin's as follows:
- values are converted to the annotated type of the parameter that takes them (`coercion`);
- a name that is misspelt, or a binding that can never be used, is an error (`checks`);
- `@Name` keeps the scope in which its binding applies, even if Name is called elsewhere
  (`bindings`);
- a macro is a plain substitution and opens no scope;
- a file that is included twice is read once (`files`);
- `import my_package.my_encoding` makes the dataclasses of that module configurable
  (`configurables`).
"""

from fire_lm.config.bindings import Bindings, Scoped
from fire_lm.config.checks import UnusedBinding, check_needed
from fire_lm.config.coercion import same
from fire_lm.config.configurables import ImportFailed
from fire_lm.config.files import SHIPPED, GinText, Statements, read, values_in
from fire_lm.config.resolved import Config, load
from fire_lm.config.syntax import Key, Ref, Statement

__all__ = [
    "Bindings",
    "Config",
    "GinText",
    "ImportFailed",
    "Key",
    "Ref",
    "SHIPPED",
    "Scoped",
    "Statement",
    "Statements",
    "UnusedBinding",
    "check_needed",
    "load",
    "read",
    "same",
    "values_in",
]

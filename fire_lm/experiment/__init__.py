"""What gin files can configure, and the values of the experiment that they describe.

`load_experiment` reads and checks gin files and bindings, and returns an `Experiment`. No other
package sees a configuration: code takes the values of an experiment.
"""

from fire_lm.config import SHIPPED, GinText, ImportFailed, Statements, UnusedBinding
from fire_lm.experiment.checks import check_blocks, check_positions, check_settings
from fire_lm.experiment.encoding_label import POSITIONS
from fire_lm.experiment.experiment import ABSENT, Difference, Experiment, InputPath
from fire_lm.experiment.loading import evaluates_a_task, kind_of, load_experiment, read_gin, resolve

__all__ = [
    "ABSENT",
    "Difference",
    "Experiment",
    "GinText",
    "ImportFailed",
    "InputPath",
    "POSITIONS",
    "SHIPPED",
    "Statements",
    "UnusedBinding",
    "check_blocks",
    "check_positions",
    "check_settings",
    "evaluates_a_task",
    "kind_of",
    "load_experiment",
    "read_gin",
    "resolve",
]

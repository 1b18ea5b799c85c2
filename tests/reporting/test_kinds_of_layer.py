"""The report's section on runs whose layers differ."""

from sample_results import facts

from fire_lm.reporting.page import Table
from fire_lm.reporting.report import kinds_of_layer
from fire_lm.results.folder import Results
from fire_lm.results.tables import KindOfLayer


def test_a_report_lists_the_kinds_of_layer_once_for_each_arm():
    rows = [
        ["0-2", "RoPE", "window 16", "46 tokens", "111,840"],
        ["3", "NoPE", "log_n", "all tokens", "111,840"],
    ]
    layers = [KindOfLayer(f"swan-seed{seed}", "swan", *row) for seed in (0, 1) for row in rows]
    runs = [facts(encoding, seed) for encoding in ("swan", "rope") for seed in (0, 1)]
    (section,) = kinds_of_layer(Results(runs=runs, layers=layers))
    (table,) = section.parts
    assert isinstance(table, Table) and table.rows == [["swan", *row] for row in rows]
    assert kinds_of_layer(Results(runs=runs)) == []

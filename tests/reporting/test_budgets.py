"""Losses by budget in a report: series and drift."""

import dataclasses
import math
import shutil

import pytest
from etils import epath
from sample_budgets import LOSSES, SEEDS, only, results
from sample_results import facts, loss_row
from test_arms import configs

from fire_lm.errors import UserError
from fire_lm.reporting import budget_sections, budgets
from fire_lm.reporting.arms import arm_names, differing, series_of
from fire_lm.reporting.budgets import by_budget, drifts
from fire_lm.reporting.gather import earlier_steps, gather
from fire_lm.reporting.length_sweep import families, loss_styles
from fire_lm.reporting.report import report_sections
from fire_lm.reporting.series import NATS
from fire_lm.results import SweepRow, read_table
from fire_lm.results.folder import Results, joined, read_results, renamed, write_results
from fire_lm.results.tables import BudgetRow


def test_a_series_has_all_budgets_and_each_knows_its_tokens():
    own = only(results())
    assert own.tokens == [1000 * 16 * 64, 4000 * 16 * 64] and own.ended and own.scale is NATS
    points = {name: [p.tokens for p in some] for name, some in own.series.items()}
    assert points == {"kerple_log": own.tokens, "fire": own.tokens, "alibi": own.tokens[:1]}
    assert own.series["fire"][1].per_parameter == pytest.approx(4000 * 1024 / 372_576)
    assert budgets.head(own, own.tokens[1]) == "4.1M tokens (11 per parameter)"
    assert [budgets.tokens_in_words(n) for n in (314 * 10**9, 9_940_000, 9_960_000, 400)] == [
        "314B", "9.9M", "10M", "400",
    ]  # fmt: skip


def test_one_budget_has_no_section():
    alone = results({key: nats for key, nats in LOSSES.items() if key[1] == 1000})
    assert by_budget(alone) == {} and budget_sections.sections(alone) == []
    assert [family.title for family in families(alone)] == ["embedded validation, concat"]


def test_drift_is_compared_within_runs_and_its_growth_between_them():
    own = only(results())
    found = drifts(own, 4)
    few, many = own.tokens
    one, apart = found.drift[few]["fire"]
    assert one.value == pytest.approx(0.08 + 0.001) and apart
    # Seeds differ by 0.05, but their drifts by 0.001 only: quantile 4.3 of t, 0.001 / sqrt(3).
    assert one.half_width == pytest.approx(4.303 * 0.001 / math.sqrt(3), rel=1e-3)
    assert drifts(own, 2).drift[few]["fire"][0].value == pytest.approx(0)
    growth, apart = found.growth["fire"]
    assert growth.value == pytest.approx(0.21 - 0.08) and apart
    assert growth.half_width == pytest.approx(2.776 * 0.001 * math.sqrt(2 / 3), rel=1e-3)
    assert "alibi" not in found.growth
    over, _ = found.over_kerple[many]["fire"]
    assert over.value == pytest.approx(0.21 + 0.075) and over.tested
    assert set(found.over_kerple[few]) == {"fire", "alibi"}


def test_drift_is_compared_with_kerples_on_the_same_text():
    found = results()
    scored = [
        dataclasses.replace(line, text="b" * 16) if line.encoding == "alibi" else line
        for line in found.scored
    ]
    own = only(dataclasses.replace(found, scored=scored))
    assert set(drifts(own, 4).over_kerple[own.tokens[0]]) == {"fire (text aaaaaaaa)"}


def test_a_single_run_is_not_tested():
    own = only(results(seeds=(0,)))
    (table, *_) = budget_sections.drift_tables(own)
    assert "no test: a single run" in table.caption and table.rows[1][1] == "+0.000 (no test)"


def test_each_budget_has_losses_and_tests_of_its_own():
    found = families(results())
    assert [family.title.rpartition(", ")[2] for family in found] == [
        "1.0M training tokens",
        "4.1M training tokens",
    ]
    names = [[line.name for line in family.lines] for family in found]
    assert names == [["kerple_log", "alibi", "fire"], ["kerple_log", "fire"]]
    (together,) = families(results(), split=False)
    assert len(together.lines) == 5


def mid_run(encoding: str, steps: int, of: int) -> Results:
    """Return a run of `of` steps that was scored at `steps`."""
    found = results({(encoding, steps): LOSSES[encoding, steps]})
    runs = [dataclasses.replace(run, train_steps=of) for run in found.runs]
    return dataclasses.replace(found, runs=runs)


def test_steps_of_one_run_are_budgets_but_never_beside_ends_of_runs():
    ended, early = results({("fire", 4000): LOSSES["fire", 4000]}), mid_run("fire", 1000, of=4000)

    def same_run(rows):
        return [dataclasses.replace(r, run=r.run.replace("-1000-", "-4000-")) for r in rows]

    one_run = dataclasses.replace(
        ended, earlier=same_run(early.losses), scored=[*ended.scored, *same_run(early.scored)]
    )
    own = only(one_run)
    assert len(own.tokens) == 2 and not own.ended
    assert "learning rate was still high" in budget_sections.described(own)[0]
    assert drifts(own, 4).growth["fire"][0].half_width == pytest.approx(0), "paired by run"
    assert len(families(one_run)) == 1, "one section of losses, not one for each checkpoint"
    ended = mid_run("fire", 4000, of=4000)
    longer = renamed(mid_run("fire", 4000, of=16000), {f"fire-4000-{s}": f"{s}" for s in SEEDS})
    middle = dataclasses.replace(longer, losses=same_step(longer.losses, 2000), runs=(), series=())
    own = only(dataclasses.replace(joined([ended, longer, middle]), scored=()))
    assert [[p.tokens, p.points[64].runs] for p in own.series["fire"]] == [
        [2_048_000, 3],
        [4_096_000, 3],
    ], "the ends of three runs, without the middle of the three others"


def test_checkpoints_from_the_middle_of_runs_are_left_out_beside_two_ends():
    both = results()
    more = renamed(mid_run("fire", 4000, of=16000), {"fire-4000-0": "a", "fire-4000-1": "b"})
    more = dataclasses.replace(more, runs=more.runs[:2], losses=same_step(more.losses[:6], 2000))
    own = only(joined([both, more]))
    assert len(own.tokens) == 2 and own.left_out == ["a", "b"]
    told = "Left out, because they were not scored at the end: a, b."
    assert told in budget_sections.described(own)[0]
    assert all(told in family.described() for family in families(joined([both, more])))
    variant = dataclasses.replace(same_step(both.losses[:1], 2)[0], variant="yarn")
    own = only(dataclasses.replace(both, losses=[*both.losses, variant]))
    assert own.left_out == [f"{variant.run} (yarn)"]
    other_text = [dataclasses.replace(row, bytes=row.bytes + 1) for row in more.losses]
    of_other = joined([both, dataclasses.replace(more, losses=other_text)])
    of_other = dataclasses.replace(of_other, scored=())
    assert {family.scale for family in families(of_other)} == {only(of_other).scale} == {NATS}


def same_step(rows, step):
    return [dataclasses.replace(row, step=step) for row in rows]


def test_earlier_steps_are_those_that_are_wholly_scored():
    run = facts("fire", 0)

    def row(step, length):
        return dataclasses.replace(loss_row(run, length, 2.0), step=step)

    rows = [row(step, n) for step, n in ((1, 64), (2, 64), (2, 128), (3, 64), (3, 128))]
    assert earlier_steps(rows, rows[3:], lambda row: row.variant) == rows[1:3]


def test_arms_of_several_steps_are_one_series():
    found = configs(
        ("a", "fire", ("TRAIN_STEPS=1000",)),
        ("b", "fire", ("TRAIN_STEPS=4000", "AdamW.learning_rate=2e-3")),
        ("c", "fire", ("TRAIN_STEPS=4000", "AdamW.learning_rate=2e-3", "FIRE.width=16")),
        ("d", "rope", ("TRAIN_STEPS=4000", "AdamW.learning_rate=1e-3")),
        ("e", "rope", ("TRAIN_STEPS=4000", "AdamW.learning_rate=3e-3")),
        ("f", "alibi", ("TRAIN_STEPS=1000",)),
        ("g", "alibi", ("TRAIN_STEPS=4000",)),
    )
    settings = differing(found)
    series = {one.run: one.name for one in series_of(found, settings, arm_names(found, settings))}
    assert series == {
        "a": "fire, width 32",
        "b": "fire, width 32",
        "c": "fire, width 16",
        "f": "alibi",
        "g": "alibi",
    }, "rope has one budget, at which the rates of d and e differ"
    same = {run: found[run] for run in ("b", "c")}
    assert series_of(same, differing(same), {}) == []


def test_arms_of_other_folders_are_one_series_if_their_budgets_differ(tmp_path):
    for steps in (1000, 4000):
        own = results({("fire", steps): LOSSES["fire", steps]})
        own = renamed(own, {run.run: str(run.seed) for run in own.runs})
        runs = [dataclasses.replace(run, arm="fire") for run in own.runs]
        part = dataclasses.replace(own, runs=runs, series=())
        write_results(epath.Path(tmp_path) / f"of{steps}", part)
    both = gather([str(tmp_path / "of1000"), str(tmp_path / "of4000")])
    assert {run.run for run in both.runs} == {f"of{n}/{s}" for n in (1000, 4000) for s in SEEDS}
    assert {run.arm for run in both.runs} == {"fire of of1000", "fire of of4000"}
    (points,) = only(both).series.values()
    assert [point.points[64].runs for point in points] == [3, 3]
    shutil.copytree(tmp_path / "of1000", tmp_path / "copy")
    with pytest.raises(UserError, match="same name"):
        gather([str(tmp_path / "of1000"), str(tmp_path / "copy")])
    write_results(epath.Path(tmp_path) / "both", both)
    assert read_results(epath.Path(tmp_path) / "both").series == both.series


def test_equal_budgets_of_other_sources_are_not_averaged():
    both = results()
    arms = [dataclasses.replace(r, arm=f"{r.arm} of {r.seed}") for r in both.runs]
    own = by_budget(dataclasses.replace(both, runs=arms))
    assert own == {}, "three sources, each with another setting, perhaps"
    longer = [
        dataclasses.replace(r, train_length=32 if r.train_steps == 1000 else 64) for r in both.runs
    ]
    assert by_budget(dataclasses.replace(both, runs=longer)) == {}, "of other training lengths"


def test_the_numbers_are_written_as_a_table(tmp_path):
    budgets.write_rows(epath.Path(tmp_path), results())
    rows = read_table(epath.Path(tmp_path) / budgets.FILE, BudgetRow)
    (row,) = (r for r in rows if (r.series, r.tokens, r.multiple) == ("fire", 4_096_000, 4))
    assert (row.seeds, row.length) == (3, 256)
    assert row.drift == pytest.approx(0.211) and row.over_kerple == pytest.approx(0.285)
    budgets.write_rows(epath.Path(tmp_path), Results())
    assert (
        not (tmp_path / budgets.FILE).exists()
        and read_table(epath.Path(tmp_path) / "a", SweepRow) == []
    )


def with_variant(found: Results) -> Results:
    more = [dataclasses.replace(row, variant="yarn-4x") for row in found.losses]
    scored = [dataclasses.replace(line, variant="yarn-4x") for line in found.scored]
    return dataclasses.replace(
        found, losses=[*found.losses, *more], scored=[*found.scored, *scored]
    )


def with_two_texts(found: Results) -> Results:
    of_run = {run.run: "ab"[run.encoding == "kerple_log"] * 16 for run in found.runs}
    scored = [dataclasses.replace(line, text=of_run[line.run]) for line in found.scored]
    return dataclasses.replace(found, scored=scored)


@pytest.mark.ci
@pytest.mark.parametrize("changed", [with_variant, with_two_texts])
def test_variants_and_texts_of_several_budgets_are_lines_of_all_figures(changed):
    few = results({key: nats for key, nats in LOSSES.items() if key[0] != "alibi"}, seeds=(0,))
    found = changed(few)
    assert len(families(found)) == 2 and report_sections(found)
    (own,) = by_budget(found).values()
    styles = loss_styles(own.results, own.points)
    looks = [str(styles[name]) for name in own.series]
    assert len(set(looks)) == len(own.series) == (4 if changed is with_variant else 2)


@pytest.mark.ci
def test_the_figures_show_what_the_tables_say():
    own, found = only(results()), results()
    (scored,) = by_budget(found)
    picture = budget_sections.drift(scored, own)
    assert "kerple_log -0.049, -0.074; fire +0.081, +0.211; alibi -0.049" in picture.alt
    assert "minus KERPLE" in picture.image.svg
    without = results({key: nats for key, nats in LOSSES.items() if key[0] == "fire"})
    assert "KERPLE" not in budget_sections.drift(scored, only(without)).image.svg
    picture = budget_sections.losses(scored, own)
    assert "4.1M tokens" in picture.image.svg and "alibi" in picture.image.svg

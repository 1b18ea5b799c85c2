"""Task scores in a report: which rows and checkpoints make a number, averages, and the page."""

import dataclasses
import re
from collections.abc import Sequence

import pytest
from etils import epath
from sample_scores import (
    glue_results,
    length_results,
    long_eval_results,
    of,
    run_of,
    score,
    scrolls_results,
)
from training_experiments import experiment_of

from fire_lm.experiment import load_experiment
from fire_lm.reporting.arms import scored_models
from fire_lm.reporting.gather import gather
from fire_lm.reporting.page import Section, Table
from fire_lm.reporting.report import report_sections, write_report
from fire_lm.reporting.sources import named_apart
from fire_lm.reporting.task_lines import AVERAGE, SuiteScores, TaskLine, suite_scores
from fire_lm.reporting.task_tables import score_comparison, score_table, sections
from fire_lm.results import TaskScore, merge_table
from fire_lm.results.folder import Results, RunFacts, joined, read_results
from fire_lm.results.tables import ScoredModel
from fire_lm.tasks.suites import SUITES


def only(results: Results) -> SuiteScores:
    (scores,) = suite_scores(results)
    return scores


def lines(results: Results) -> dict[str, TaskLine]:
    return {line.name: line for line in only(results).lines}


def shown(line: TaskLine) -> dict[str, float]:
    return {column.title: point.mean for column, point in line.points.items() if column != AVERAGE}


def words(made: Sequence[Section]) -> str:
    return " ".join(text for section in made for text in section.paragraphs)


def table_of(results: Results) -> Table:
    return score_table(only(results))


@pytest.fixture(scope="module")
def scrolls() -> Results:
    return scrolls_results()


@pytest.fixture(scope="module")
def scrolls_sections(scrolls) -> list[Section]:
    return sections(scrolls)


def test_runs_on_different_tasks_make_one_line_and_seeds_one_mean(scrolls):
    found = lines(scrolls)
    assert list(found) == ["fire", "alibi (interpolate)", "alibi", "rope"]
    fire = found["fire"]
    assert len(fire.points) == 7 + 1 and {point.runs for point in fire.points.values()} == {3}
    # Seed 0 is best at step 250 (20 + 3 + 2.5), seeds 1 and 2 at step 500.
    assert shown(fire)["gov_report"] == pytest.approx((25.5 + 25 + 26) / 3)
    assert {fire.steps[f"fire_gov_report-{seed}"] for seed in (1, 2)} == {500}
    assert fire.steps["fire_gov_report-0"] == 250
    average = fire.points[AVERAGE]
    assert average.runs == 3
    assert average.mean == pytest.approx(25.5 + 3), "0 to 6 more by data set"
    assert average.spread == pytest.approx(0.5)


def test_an_average_needs_all_columns_and_the_page_says_which_are_missing(
    scrolls, scrolls_sections
):
    rope = lines(scrolls)["rope"]
    assert AVERAGE not in rope.points and [column.title for column in rope.lacking] == ["quality"]
    assert "needs all 7 columns: rope lacks the column quality." in words(scrolls_sections)
    table = table_of(scrolls)
    assert [row[-1] for row in table.rows if row[0] == "rope"] == ["6 of 7"]


def test_glue_has_15_columns_and_the_error_of_independent_data_sets():
    found = lines(glue_results())
    assert len(only(glue_results()).columns) == 15
    assert found["fire"].points[AVERAGE].error == pytest.approx(1.5 / 15**0.5)
    assert AVERAGE not in found["rope"].points
    table = table_of(glue_results())
    assert "multirc (em)" in table.header and "stsb" not in " ".join(table.header)


def test_averages_of_columns_with_other_seeds_have_no_test():
    """Such an average once had no run, which ended the report of two such models."""
    runs, rows = [], []
    for encoding in ("fire", "rope"):
        for seed in (0, 1):
            run = run_of(f"{encoding}-{seed}", encoding, seed)
            runs.append(run)
            tasks = SUITES["scrolls"].tasks[: 7 - seed]
            rows += [score(run, "scrolls", t.name, 5.0 + seed, metric=t.primary) for t in tasks]
    results = of(*rows, runs=runs)
    averages = [line.points[AVERAGE] for line in only(results).lines]
    assert [one.mean for one in averages] == pytest.approx([5.5 - 0.5 / 7] * 2)
    (family,) = score_comparison(only(results)).families.values()
    assert not family.adjusted
    assert sections(results)[0].parts


def test_lengths_are_columns_and_their_average_has_no_error():
    """The lengths share their examples, so they are not independent."""
    scores = only(length_results())
    assert [column.length for column in scores.columns] == list(SUITES["narrative_qa"].lengths)
    table = table_of(length_results())
    assert re.fullmatch(r"\d+\.\d\d", table.rows[0][-1]) and "±" in table.rows[0][1]
    alibi = lines(length_results())["alibi"]
    assert AVERAGE not in alibi.points and [column.length for column in alibi.lacking] == [32768]
    pictures = [part.name for part in sections(length_results())[0].parts[1:]]
    assert pictures == ["narrative_qa_by_length"]


def test_sizes_are_a_figure_and_the_validated_step_is_shown():
    made = sections(long_eval_results())
    assert [part.name for part in made[0].parts[2:]] == ["long_eval_by_size", "long_eval_by_step"]
    fire = lines(long_eval_results())["fire"]
    assert set(fire.steps.values()) == {500}, "the only step with all sizes, and the best"
    assert shown(fire) == {
        "validation": 94.0, "size_8": 95.0, "size_16": 80.0, "size_32": 65.0, "size_64": 50.0,
    }  # fmt: skip
    assert [round(p.mean, 1) for p in next(iter(fire.history.values())).values()] == [
        91.5, 94.0, 91.5,
    ]  # fmt: skip
    by_step = made[-1].parts[0]
    assert isinstance(by_step, Table) and by_step.header == ["", "shown", "250", "500", "750"]
    assert {column for _, column in by_step.best} == {3}


def test_the_best_of_the_checkpoints_with_most_scores_is_shown():
    run = run_of("r", "fire")
    validation = [
        score(run, "long_eval", "long_eval_lines", value, step=step)
        for step, value in ((250, 99.0), (500, 50.0), (750, 60.0))
    ]
    size = [
        score(run, "long_eval", "long_eval_lines", 1.0, step=step, split="size_8")
        for step in (500, 750)
    ]
    assert lines(of(*validation, runs=[run]))["fire"].steps == {"r": 250}
    assert lines(of(*validation, *size, runs=[run]))["fire"].steps == {"r": 750}


def test_settings_are_lines_of_their_own():
    """Variants, decodings, samples and lengths never mix in a mean."""
    run = run_of("r", "fire")

    def with_more(**changed: object) -> list[str]:
        rows = [score(run, "mine", "task", value) for value in (5.0,)]
        return sorted(lines(of(*rows, score(run, "mine", "task", 9.0, **changed), runs=[run])))

    assert with_more(variant="PI") == ["fire", "fire (PI)"]
    assert with_more(decoding="beam-4") == ["fire (beam-4)", "fire (greedy)"]
    assert with_more(truncation="tail") == ["fire (head)", "fire (tail)"]
    assert with_more(split="validation, 10 drawn") == ["fire", "fire (10 drawn)"]
    assert with_more(context_length=600) == ["fire (513 tokens)", "fire (600 tokens)"]
    assert with_more(context_length=600, step=500) == ["fire (513 tokens)", "fire (600 tokens)"]
    seeds = [run_of("r", "fire"), run_of("s", "fire", seed=1)]
    rows = [score(seeds[0], "mine", "task", 5.0), score(seeds[1], "mine", "task", 9.0,
            context_length=600)]  # fmt: skip
    assert sorted(lines(of(*rows, runs=seeds))) == ["fire (513 tokens)", "fire (600 tokens)"]
    scores = only(of(score(run, "mine", "task", 5.0), score(run, "mine", "task", 9.0,
                     input_length=2048, context_length=2057), runs=[run]))  # fmt: skip
    assert [c.title for c in scores.columns] == ["validation, 504", "validation, 2,048"]


def test_each_input_length_of_a_suite_is_a_line_with_an_average():
    """Answers have different lengths by data set, so context lengths differ at one input length."""
    run = run_of("fire_scrolls", "fire")

    def evaluated(value: float, context_length: int = 0, input_length: int = 0) -> list[TaskScore]:
        return [
            score(
                run, "scrolls", task.name, value, metric=task.primary,
                target_length=task.target_length,
                input_length=input_length or context_length - 1 - task.target_length,
                context_length=context_length or input_length + 1 + task.target_length,
            )
            for task in SUITES["scrolls"].tasks
        ]  # fmt: skip

    def averages(*rows: TaskScore) -> dict[str, float | None]:
        found = {name: line.points for name, line in lines(of(*rows, runs=[run])).items()}
        return {name: p[AVERAGE].mean if AVERAGE in p else None for name, p in found.items()}

    asked = [*evaluated(1.0, input_length=1024), *evaluated(4.0, input_length=4096)]
    assert averages(*asked) == {
        "fire (inputs of 1,024 tokens)": 1.0, "fire (inputs of 4,096 tokens)": 4.0,
    }  # fmt: skip
    assert averages(*evaluated(8.0, context_length=8192), *asked[:7]) == {
        "fire (8,192 tokens)": 8.0, "fire (inputs of 1,024 tokens)": 1.0,
    }  # fmt: skip
    longer = dataclasses.replace(asked[0], context_length=3000, value=9.0)
    assert len(averages(*asked[:7], longer)) == 3, "rows of one input length are not merged"
    same_total = dataclasses.replace(asked[0], target_length=8, input_length=1528)
    assert averages(*asked[:7], same_total)["fire (inputs of 1,024 tokens)"] == 1.0


def finetuned_on(name: str, task: str, seed: int = 0) -> RunFacts:
    data = f"{task}, one example per row, targets of up to 64 tokens, input truncation 'head'"
    return run_of(name, "fire", seed, data=data)


def test_runs_finetuned_on_another_task_than_the_columns_are_lines_of_their_own():
    """They have the name of the same model, so they would replace its runs or be averaged."""
    own = finetuned_on("fire_narrative_qa", "fire_lm:scrolls_narrative_qa")
    others = [
        finetuned_on(f"fire_qasper-{seed}", "fire_lm:scrolls_qasper", seed) for seed in (0, 1)
    ]
    rows = [
        score(run, "scrolls", "scrolls_narrative_qa", value, metric="f1", step=step)
        for run, value in ((own, 9.0), (others[0], 1.0), (others[1], 2.0))
        for step in (250, 500)
    ]
    rows += [score(run, "scrolls", "scrolls_qasper", 7.0, metric="f1") for run in others]
    results = of(*rows, runs=[own, *others])
    found = lines(results)
    assert {name: shown(line) for name, line in found.items()} == {
        "fire": {"narrative_qa": 9.0, "qasper": 7.0},
        "fire, finetuned on qasper": {"narrative_qa": 1.5},
    }
    (history,) = found["fire, finetuned on qasper"].history.values()
    assert {step: mean.mean for step, mean in history.items()} == {250: 1.5, 500: 1.5}


def test_a_mixture_is_named_only_beside_runs_on_other_tasks():
    mixed = finetuned_on("fire_glue", "fire_lm:glue_super_glue")
    alone = finetuned_on("fire_cola", "fire_lm:glue_cola")
    rows = [
        score(mixed, "glue_super_glue", task, 50.0)
        for task in ("glue_cola", "glue_sst2", "glue_wnli")
    ]
    assert list(lines(of(*rows, runs=[mixed]))) == ["fire"]
    rows.append(score(alone, "glue_super_glue", "glue_cola", 60.0))
    found = lines(of(*rows, runs=[mixed, alone]))
    assert shown(found["fire"]) == {"cola": 60.0}
    assert shown(found["fire, finetuned on glue_super_glue"])["cola"] == 50.0
    mine = [finetuned_on("fire_a", "mine_a"), finetuned_on("fire_b", "mine_b")]
    rows = [score(run, "", "mine_a", 5.0) for run in mine]
    assert set(lines(of(*rows, runs=mine))) == {"fire", "fire, finetuned on mine_b"}


def test_only_the_primary_metric_of_a_users_task_is_in_the_table():
    run = run_of("r", "fire")
    rows = [score(run, "", "mine", 5.0, metric=name) for name in ("first", "second")]
    (section, _) = sections(of(*rows, runs=[run]))
    assert section.title == "Task scores: other tasks"
    table = section.parts[0]
    assert isinstance(table, Table) and table.rows == [["fire", "5.00 ± 0.50"]]
    unknown = dataclasses.replace(rows[0], stderr=float("nan"))
    assert score_table(only(of(unknown, runs=[run]))).rows == [["fire", "5.00"]]


def test_without_validation_the_newest_checkpoint_is_shown():
    run = run_of("r", "fire")
    rows = [score(run, "mine", "t", step, step=step, split="test") for step in (1, 3, 2)]
    shown = "the newest of those with the most scores is shown. Shown: r at 3."
    assert shown in words(sections(of(*rows, runs=[run])))


def test_a_report_of_task_scores_alone_and_back(tmp_path):
    parts = [length_results(), long_eval_results()]
    results = joined([*parts, Results()])
    made = write_report(epath.Path(tmp_path), "Tasks", results)
    titles = [section.title for section in made]
    assert "Task scores: narrative_qa" in titles and "Task scores by checkpoint" in titles
    assert not any(title.startswith("Loss") for title in titles), "no run has been swept"
    again = read_results(epath.Path(tmp_path))
    assert list(again.task_scores) == list(results.task_scores)
    assert list(again.models) == list(results.models)
    assert (tmp_path / "long_eval_by_size.svg").exists()
    assert "<h2>Task scores: long_eval</h2>" in (tmp_path / "index.html").read_text()
    assert report_sections(Results(runs=results.runs))[1].title.startswith("Loss")


def test_models_have_the_name_of_their_arm_without_the_task():
    finetune = ["configs/models/125m.gin", "configs/positions/fire.gin", "configs/model.gin"]

    def config(name: str, *bindings: str):
        given = ("VOCABULARY='bytes'", "VOCAB_SIZE=384", "DATA_DIR='/data'", *bindings)
        return load_experiment([*finetune, f"configs/finetune/{name}.gin"], given)

    configs = {
        "a": config("scrolls_qasper", "INIT_FROM='runs/fire-0'"),
        "b": config("scrolls_qasper", "SEED=1", "INIT_FROM='runs/fire-1'"),
        "c": config("scrolls_quality", "INIT_FROM='runs/fire-0'"),
        "d": config(
            "scrolls_quality", "INIT_FROM='runs/fire-0'", "build_decoder.attention_dropout=0.5"
        ),
        "e": config("glue_super_glue"),
    }
    rows = [
        score(run_of(run, "fire"), suite, "t", 1.0)
        for suite, runs in (("scrolls", "abcd"), ("glue_super_glue", "e"))
        for run in runs
    ]
    found = {(model.run, model.suite): model.name for model in scored_models(configs, rows)}
    usual, other = "fire, attention_dropout 0.1", "fire, attention_dropout 0.5"
    assert found == {
        ("a", "scrolls"): usual, ("b", "scrolls"): usual, ("c", "scrolls"): usual,
        ("d", "scrolls"): other, ("e", "glue_super_glue"): "fire",
    }  # fmt: skip


def test_models_of_other_pairs_of_one_name_are_not_averaged():
    def config(seed: int, digest: str):
        given = {"PAIRS": "'/data/faq.jsonl'", "PAIRS_SHA256": f"'{digest * 8}'", "SEED": seed}
        given |= {"VOCABULARY": "'bytes'", "VOCAB_SIZE": 384, "TARGET_LENGTH": 9}
        given |= {"TRAIN_LENGTH": 64, "BATCH_SIZE": 4, "INIT_FROM": "'runs/fire'"}
        files = ["models/125m", "positions/fire", "model", "finetune/pairs"]
        bindings = [f"{name}={value}" for name, value in given.items()]
        return load_experiment([f"configs/{file}.gin" for file in files], bindings)

    configs = {"a": config(0, "aaaa1111"), "b": config(1, "aaaa1111"), "c": config(2, "bbbb2222")}
    rows = [score(run_of(run, "fire"), "", "faq", 1.0) for run in configs]
    names = [model.name for model in scored_models(configs, rows)]
    assert names == ["fire, pairs aaaa1111", "fire, pairs aaaa1111", "fire, pairs bbbb2222"]


def test_models_of_other_folders_of_results_are_not_averaged():
    part = Results(models=[ScoredModel("r", "scrolls", "fire")])
    names = [r.models[0].name for r in named_apart([("one", part), ("two", part)])]
    assert names == ["fire of one", "fire of two"]


def test_a_report_of_finetuned_runs_and_their_source(tmp_path, capsys):
    """The folders are as `fire-lm evaluate` leaves them, with rows under the run's earlier name."""
    model = [f"--gin_file=configs/{name}.gin" for name in ("models/tiny", "positions/alibi")]
    model += ["--gin.VOCABULARY=bytes", "--gin.VOCAB_SIZE=384", "--gin.DATA_DIR=/data"]
    for seed in range(2):
        arguments = ["finetune", "--gin_file=configs/finetune/scrolls_qasper.gin", *model]
        config = experiment_of([*arguments, f"--gin.SEED={seed}"])
        folder = epath.Path(tmp_path) / f"alibi_qasper-{seed}"
        folder.mkdir()
        (folder / "config.gin").write_text(config.text())
        run = run_of("earlier", "alibi")
        rows = [
            score(run, "scrolls", "scrolls_qasper", 10.0 + seed, metric="f1", variant=variant)
            for variant in ("", "interpolate")
        ]
        rows.append(score(run, "scrolls", "scrolls_quality", 30.0, metric="em"))
        merge_table(folder / "task_scores.csv", TaskScore, rows)
    source = epath.Path(tmp_path) / "alibi"
    source.mkdir()
    quickstart = ["configs/runs/quickstart.gin", "configs/positions/alibi.gin"]
    (source / "config.gin").write_text(load_experiment(quickstart).text())
    waiting = epath.Path(tmp_path) / "waiting"
    waiting.mkdir()
    (waiting / "config.gin").write_text(config.text().replace("SEED = 1", "SEED = 2"))
    results = gather([str(tmp_path)])
    assert "No task has been scored yet for waiting: run `fire-lm evaluate" in words(
        sections(results)
    )
    assert set(results.arms()) == {"alibi", "alibi, finetuned"}
    found = lines(results)
    assert shown(found["alibi"]) == {"qasper": 10.5} and "alibi (interpolate)" in found
    assert shown(found["alibi, finetuned on qasper"]) == {"quality": 30.0}
    assert {row.run for row in results.task_scores} == {"alibi_qasper-0", "alibi_qasper-1"}
    assert "fire_lm:scrolls_qasper" in next(run.data for run in results.runs if run.run != "alibi")

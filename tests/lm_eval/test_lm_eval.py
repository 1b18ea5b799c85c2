"""The requests of lm-evaluation-harness, and the calls to the run that answer them."""

import json
import logging
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from fire_lm import cli
from fire_lm.data import TextData
from fire_lm.errors import UserError
from fire_lm.lm_eval.__main__ import main

# Name a module: "lm_eval" alone would find the folder of these tests.
needs_harness = pytest.mark.interop("lm_eval.api")


@pytest.fixture
def harness(monkeypatch):
    """Return a `FireLM` that reads ten tokens, with an engine that records the requests to it.

    A row's score is minus its number of tokens; a prompt is continued by its last character.
    """
    from fire_lm.lm_eval import model

    asked = []

    class Leader:
        def __init__(self, run, bindings):
            self.bindings = bindings
            self.engine = SimpleNamespace(
                data=TextData("none", vocabulary="bytes"),
                train_length=10,
                name="run@1",
                check_length=lambda length: None,
            )

        def scores(self, rows):
            asked.append(rows)
            for index, (context, continuation) in reversed(list(enumerate(rows))):
                yield index, -1.0 * len(continuation), len(context) == 1

        def texts(self, prompts, *others):
            asked.append((prompts, *others))
            return [chr(prompt[-1] - 3) for prompt in prompts]

    monkeypatch.setattr(model, "Leader", Leader)
    found = model.FireLM(run="run")
    found.asked = asked
    return found


def requests(*arguments):
    return [SimpleNamespace(args=one) for one in arguments]


def ids(text):
    return [byte + 3 for byte in text.encode()]


@needs_harness
def test_a_text_begins_with_token_0_and_a_long_one_loses_its_beginning(harness, capsys):
    asked = requests(("ab", "c"), ("", "xy"), ("0123456789", "end"), ("a ", "b"))
    assert harness.loglikelihood(asked, disable_tqdm=True) == [
        (-1.0, False), (-2.0, True), (-3.0, False), (-2.0, False),
    ]  # fmt: skip
    (rows,) = harness.asked
    assert rows[0] == ([0, *ids("ab")], ids("c"))
    assert rows[1] == ([0], ids("xy"))
    assert rows[2] == (ids("23456789"), ids("end"))  # ten tokens are read: the last predicts none
    assert rows[3] == ([0, *ids("a")], ids(" b"))  # a space belongs to the word after it
    assert "truncated 1 of 4 requests from the left to fit max_length=10" in capsys.readouterr().out


@needs_harness
def test_a_long_text_is_scored_in_windows_each_token_once(harness):
    text = "abcdefghijklmnopqrstuvwxy"
    assert harness.loglikelihood_rolling(requests((text,), ("z",)), disable_tqdm=True) == [
        -25.0, -1.0,
    ]  # fmt: skip
    (rows,) = harness.asked
    scored = [token for _, continuation in rows[:-1] for token in continuation]
    assert scored == ids(text) and rows[0][0] == [0] and rows[-1] == ([0], ids("z"))
    assert all(len(context) + len(continuation) <= 11 for context, continuation in rows)


@needs_harness
def test_generation_is_grouped_by_its_settings(harness, capsys):
    greedy = {"until": ["\n", ""], "max_gen_toks": 4}
    drawn = {"until": [], "max_gen_toks": 4, "do_sample": True, "temperature": 0.5, "top_k": 3}
    asked = requests(("long", greedy), ("s", greedy), ("x", drawn), ("abcdefgh", greedy))
    assert harness.generate_until(asked, disable_tqdm=True) == ["g", "s", "x", "h"]
    first, second = harness.asked
    assert first[1:] == ([1, 0, 3], 4, ["\n"], {}, 10)
    assert first[0] == [[0, *ids("s")], [0, *ids("long")], ids("cdefgh")]
    assert second[1:] == ([2], 4, [], {"temperature": 0.5, "top_k": 3}, 10)
    assert "truncated 1 of 4 requests" in capsys.readouterr().out
    with pytest.raises(UserError, match="no room for a prompt in addition to 10 new tokens"):
        harness.generate_until(requests(("a", {"until": [], "max_gen_toks": 10})))
    with pytest.raises(UserError, match="the generation setting 'num_beams' is not supported"):
        harness.generate_until(requests(("a", {"until": [], "max_gen_toks": 1, "num_beams": 2})))


@needs_harness
def test_arguments_that_have_no_meaning_are_refused(harness):
    with pytest.raises(UserError, match="temperature is not an argument of fire_lm"):
        type(harness)(run="run", temperature=1)
    with pytest.raises(UserError, match="--batch_size=x is neither"):
        type(harness)(run="run", batch_size="x")
    with pytest.raises(UserError, match="--model_args has no run"):
        type(harness)()
    for length in ("x", 0, -1, 12.5):
        with pytest.raises(UserError, match=f"max_length is {length}: it must be a positive"):
            type(harness)(run="run", max_length=length)
    asked = type(harness)(run="run", **{"gin.RoPE.base": 500})
    assert asked._leader.bindings == ["RoPE.base=500"]


QUESTIONS = [
    {"q": "fire and", "choices": [" rope", " alibi"], "gold": 0},
    {"q": "", "choices": ["so they say. ", "positions"], "gold": 1},
    {"q": "rope alibi and fire nope are positions, so they", "choices": [" say.", " x"], "gold": 0},
]


def write_tasks(folder: Path) -> tuple[str, ...]:
    """Write a multiple-choice, a rolling and a generate_until task; return their names."""
    folder.mkdir(exist_ok=True)
    lines = folder / "lines.jsonl"
    lines.write_text("\n".join(map(json.dumps, QUESTIONS)))
    base: dict[str, Any] = {
        "dataset_path": "json",
        "dataset_kwargs": {"data_files": {"test": str(lines)}},
        "test_split": "test",
        "doc_to_text": "{{q}}",
    }
    kinds: dict[str, dict[str, Any]] = {
        "choice": {
            "output_type": "multiple_choice",
            "doc_to_choice": "{{choices}}",
            "doc_to_target": "gold",
        },
        "rolling": {
            "output_type": "loglikelihood_rolling",
            "doc_to_text": "",
            "doc_to_target": "{{q}} and {{choices[0]}}",
            "metric_list": [{"metric": "byte_perplexity"}],
        },
        "generated": {
            "output_type": "generate_until",
            "doc_to_target": "{{choices[0]}}",
            "generation_kwargs": {"until": ["\n"], "max_gen_toks": 5},
            "metric_list": [{"metric": "exact_match"}],
        },
    }
    for name, more in kinds.items():
        (folder / f"{name}.yaml").write_text(json.dumps({"task": name, **base, **more}))
    return tuple(kinds)


@pytest.fixture
def run(trained):
    return trained / "finished"


@pytest.fixture
def offline(monkeypatch, tmp_path):
    """Keep the harness from accessing the hub, and its cache in the test's folder."""
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(sys, "argv", ["lm_eval"])
    yield
    logging.getLogger("lm_eval").handlers.clear()  # they write to a stream that pytest closes


@needs_harness
def test_the_three_kinds_of_tasks_over_a_run(run, offline, tmp_path, capsys):
    """The tasks of docs/hugging_face.md run as well."""
    shutil.copytree("docs/lm_eval_tasks", tmp_path / "tasks")
    names = [*write_tasks(tmp_path / "tasks"), "code_choice", "code_bits"]
    asked = ["run", "--model", "fire_lm", "--include_path", str(tmp_path / "tasks")]
    asked += ["--tasks", *names]
    results = ["--output_path", str(tmp_path / "out"), "--model_args"]
    assert main([*asked, *results, f"run={run}"]) == 0
    (found,) = (tmp_path / "out").rglob("results_*.json")
    scores = json.loads(found.read_text())["results"]
    assert 1 < scores["rolling"]["byte_perplexity,none"] < 256
    assert np.isfinite(scores["choice"]["acc,none"])
    assert scores["code_choice"]["acc,none"] in np.arange(9) / 8
    assert 0 < scores["code_bits"]["bits_per_byte,none"] < 9
    assert main([*asked, "--model_args", f"run={tmp_path}/none"]) == 2
    assert "contains no run" in capsys.readouterr().err


# The harness's command line, once for each list of arguments.
HARNESS = """
import json, sys
from lm_eval.__main__ import HarnessCLI

for arguments in json.loads(sys.argv[1]):
    sys.argv = ["lm_eval", *arguments]
    harness = HarnessCLI()
    harness.execute(harness.parse_args())
"""


@pytest.mark.interop("lm_eval.api", "torch", "transformers", "accelerate")
def test_the_harness_model_of_transformers_agrees(run, offline, tmp_path):
    """All log-likelihoods and generated texts agree with those of the exported run."""
    names = write_tasks(tmp_path / "tasks")
    assert cli.main(["export", str(run), f"--output={tmp_path / 'exported'}"]) == 0

    def arguments(model: str, settings: str, *tasks: str) -> list[str]:
        asked = ["run", "--include_path", str(tmp_path / "tasks"), "--tasks", *tasks]
        asked += ["--log_samples", "--output_path", str(tmp_path / model), "--model", model]
        return [*asked, "--model_args", f"{settings},max_length=32"]

    assert main(arguments("fire_lm", f"run={run}", *names)) == 0
    folder = f"pretrained={tmp_path / 'exported'},trust_remote_code=True,dtype=float32"
    # In rolling tasks, the harness's add_bos_token=True would score token 0 as part of the text.
    kinds = {True: ("choice", "generated"), False: ("rolling",)}
    asked = [arguments("hf", f"{folder},add_bos_token={bos}", *kinds[bos]) for bos in kinds]
    subprocess.run(  # a process that has TensorFlow must not load torch
        [sys.executable, "-c", HARNESS, json.dumps([[*one, "--device", "cpu"] for one in asked])],
        check=True,
        cwd=tmp_path,
        timeout=600,
    )
    for name in names:
        ours, theirs = (responses(tmp_path / model, name) for model in ("fire_lm", "hf"))
        assert len(ours) == len(theirs) == len(QUESTIONS)
        if name == "generated":
            assert ours == theirs and any(text for ((text,),) in ours)
        else:
            numbers, others = (numbers_of(each) for each in (ours, theirs))
            np.testing.assert_allclose(numbers, others, rtol=1e-6, atol=1e-5)


def responses(output: Path, task: str) -> list[Any]:
    """Return a model's responses to a task's requests, document by document."""
    (file,) = output.rglob(f"samples_{task}_*.jsonl")
    samples = [json.loads(line) for line in file.read_text().splitlines()]
    return [one["resps"] for one in sorted(samples, key=lambda one: one["doc_id"])]


def numbers_of(answers: list[Any]) -> list[float]:
    """Return log-likelihoods and whether the text is the greedy one, from the harness's strings."""
    words = {"True": 1.0, "False": 0.0}
    return [words[one] if one in words else float(one) for one in np.ravel(answers)]


def test_without_the_harness_it_says_how_to_install_it(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "lm_eval.__main__", None)
    assert main(["run"]) == 2
    assert "pip install -e '.[lm-eval]'" in capsys.readouterr().err

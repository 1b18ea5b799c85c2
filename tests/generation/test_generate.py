"""`fire-lm generate` and `Run.generate` with a trained run."""

import io
import json

import jax
import numpy as np
import pytest
from sample_vocabulary import MODEL

import fire_lm
from fire_lm.cli import main
from fire_lm.cli.generate import _Terminal, continue_one
from fire_lm.data import TextData
from fire_lm.errors import RunFailed, UserError
from fire_lm.generation import Beam, Greedy, Sample
from fire_lm.generation.continuations import Continuation, Writer, width
from fire_lm.generation.prompts import read_prompts

PROMPT = "fire and "


@pytest.fixture(scope="module")
def workdir(trained):
    return trained / "finished"


@pytest.fixture(scope="module")
def greedy(workdir):
    """Return 8 tokens after `PROMPT`, generated from Python."""
    return fire_lm.open_run(str(workdir)).generate(PROMPT, new_tokens=8)[0]


@pytest.fixture
def prompts(tmp_path):
    path = tmp_path / "prompts.jsonl"
    lines = [{"prompt": "rope and fire "}, {"id": "x", "prompt": PROMPT}, {"prompt": "so they "}]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def results(path):
    return {line["id"]: line for line in map(json.loads, path.read_text().splitlines())}


def test_greedy_is_the_likeliest_of_the_full_forward_pass(workdir, greedy):
    run = fire_lm.open_run(str(workdir))
    model, params = run.restore()
    ids = run.encode(PROMPT + greedy.text)
    assert tuple(ids[len(PROMPT) :]) == greedy.tokens and greedy.ended == "length"
    logits = jax.jit(model.apply)({"params": params}, *run.inputs(PROMPT + greedy.text))[0]
    logits = np.asarray(logits[len(PROMPT) : -1])
    assert tuple(1 + np.argmax(logits[:, 1:], axis=-1)) == greedy.tokens
    logprobs = logits - np.logaddexp.reduce(logits, axis=-1, keepdims=True)
    chosen = logprobs[np.arange(len(greedy.tokens)), list(greedy.tokens)]
    np.testing.assert_allclose(chosen, greedy.logprobs, atol=0.02)  # bfloat16


def test_one_prompt_is_printed(workdir, greedy, capsys):
    flags = ["generate", str(workdir), f"--prompt={PROMPT}", "--new_tokens=8"]
    assert main(flags) == 0
    told = capsys.readouterr()
    assert told.out == greedy.text + "\n" and told.err.startswith("8 tokens, ended by length")
    assert main([*flags, f"--stop={greedy.text[3:5]}"]) == 0
    assert capsys.readouterr().out == greedy.text[: greedy.text.find(greedy.text[3:5])] + "\n"


@pytest.mark.ci
def test_prompts_of_a_file_resume(workdir, greedy, prompts, tmp_path, capsys, monkeypatch):
    """A second command computes only what is missing, even after a kill left half a line."""
    output = tmp_path / "out.jsonl"
    flags = ["generate", f"{workdir}@12", "--new_tokens=8", "--batch_size=2"]
    assert main([*flags, f"--prompts={prompts}", f"--output={output}"]) == 0
    whole = results(output)
    assert list(whole) == [3, "x", 1] and whole["x"]["continuations"][0]["text"] == greedy.text
    about = {"run": "finished", "step": 12, "variant": "", "decoding": "greedy", "stop": []}
    about |= {"new_tokens": 8, "context_length": 1 + len("rope and fire ") + 8}
    assert whole[3].items() >= about.items()

    first, second, _ = output.read_text().splitlines(keepends=True)
    output.write_text(first + second[:30])
    capsys.readouterr()
    assert main([*flags, f"--prompts={prompts}", f"--output={output}"]) == 0
    assert results(output) == whole
    assert "1 of 3 prompts already have results in" in capsys.readouterr().out

    other = tmp_path / "other.jsonl"
    other.write_text(prompts.read_text().replace("so they ", "so then "))
    assert main([*flags, f"--prompts={other}", f"--output={output}"]) == 2
    assert "the prompt with id 3 was 'so they ', but is now 'so then '" in capsys.readouterr().err
    assert results(output) == whole

    assert main([*flags, f"--prompts={prompts}", f"--output={output}", "--top_k=2"]) == 2
    assert "contains continuations with decoding = 'greedy', not 'sample-t1-k2'" in (
        capsys.readouterr().err
    )
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(prompts.read_bytes())))
    assert main([*flags, "--prompts=-"]) == 0
    assert {line["id"]: line for line in map(json.loads, capsys.readouterr().out.splitlines())} == (
        whole
    )


@pytest.mark.ci
def test_what_is_finished_stays_when_the_model_fails(workdir, prompts, tmp_path, monkeypatch):
    """A later batch fails, for example with NaN."""
    output = tmp_path / "out.jsonl"
    flags = ["generate", str(workdir), f"--prompts={prompts}", f"--output={output}"]
    flags += ["--new_tokens=2", "--batch_size=2"]
    real, calls = Writer.continue_prompts, []

    def fail_later(*given):
        calls.append(given)
        if len(calls) == 2:
            raise RunFailed("the model returns NaN")
        return real(*given)

    monkeypatch.setattr(Writer, "continue_prompts", fail_later)
    assert main(flags) == 1
    assert list(results(output)) == [3, "x"]
    assert main(flags) == 0 and len(calls) == 3
    assert list(results(output)) == [3, "x", 1]


@pytest.mark.ci
def test_what_changes_at_evaluation_is_recorded(workdir, prompts, tmp_path):
    output = tmp_path / "log_n.jsonl"
    flags = [f"--prompts={prompts}", f"--output={output}", "--new_tokens=2"]
    flags.append("--gin_file=configs/log_n/inference.gin")
    assert main(["generate", str(workdir), *flags]) == 0
    assert {line["variant"] for line in results(output).values()} == {"log_n-clipped"}


@pytest.mark.ci
def test_a_sample_is_the_same_alone_and_in_a_file(workdir, prompts, tmp_path):
    """The random key depends on the seed and the prompt's number only."""
    flags = ["--new_tokens=4", "--samples=2", "--seed=3", f"--prompts={prompts}"]
    both = []
    for size in (1, 3):
        output = tmp_path / f"{size}.jsonl"
        more = [f"--batch_size={size}", f"--output={output}"]
        assert main(["generate", str(workdir), *flags, *more]) == 0
        both.append(
            {key: [one["tokens"] for one in line["continuations"]]
             for key, line in results(output).items()}
        )  # fmt: skip
    assert both[0] == both[1]


@pytest.mark.ci
def test_samples_and_beams(workdir, capsys):
    run = fire_lm.open_run(str(workdir))
    drawn = run.generate(PROMPT, new_tokens=4, method=Sample(samples=3))
    found = run.generate(PROMPT, new_tokens=4, method=Beam(2))
    assert len(drawn) == 3 and found[0].score >= found[1].score
    flags = [f"--prompt={PROMPT}", "--new_tokens=4", "--beams=2"]
    assert main(["generate", str(workdir), *flags]) == 0
    assert f"--- 2 of 2: score {found[1].score:.3f}" in capsys.readouterr().out


@pytest.mark.parametrize(
    "flags, told",
    [
        (
            ["--prompt=x", "--beams=2", "--temperature=2"],
            "--beams and --temperature exclude each other",
        ),
        (["--prompt=x", "--alpha=1"], "also give --beams"),
        (["--prompt=x", "--temperature=0"], "for greedy decoding, omit --temperature"),
        (["--prompt=x", "--temperature=1e-39"], "temperature is 1e-39"),
        (["--prompt=x", "--context_length=99999999"], "exact up to 16,777,216"),
        (["--prompt=x", "--temperature=nan"], "temperature is nan"),
        (["--prompt="], "--prompt is empty"),
        (["--prompt=x", "--stop="], "--stop is empty"),
        (["--prompt=x", "--output=y"], "--output applies only to --prompts"),
        (["--prompt=x", "--context_length=3", "--new_tokens=9"], "context_length=3"),
        (["--prompt=x", "--prompts=y"], "not allowed with"),
        (["--prompts=nowhere.jsonl"], "there is no file nowhere.jsonl"),
        ([], "--prompt"),
        (["--prompt=x", "--seed=-1"], "'-1' is not a whole number"),
    ],
)
def test_what_is_refused(workdir, capsys, flags, told):
    assert main(["generate", str(workdir), *flags]) == 2
    assert told in capsys.readouterr().err


@pytest.mark.parametrize(
    "lines, told",
    [
        (["no JSON"], "f, line 1: expected"),
        (["", '{"text": "a"}'], "f, line 2: expected"),
        (['{"id": 2, "prompt": "a"}', '{"prompt": "b"}'], "line 1 already has the id 2"),
        (['{"id": true, "prompt": "a"}'], "f, line 1: expected"),
        ([""], "f contains no prompts"),
    ],
)
def test_prompts_that_cannot_be_read(lines, told):
    with pytest.raises(UserError, match=told):
        read_prompts("\n".join(lines).encode(), "f")


def test_prompts_that_are_not_unicode():
    with pytest.raises(UserError, match="f, line 2: not UTF-8 .* at byte 13"):
        read_prompts(b'{"prompt": "a"}\n{"prompt": "\xff"}', "f")
    with pytest.raises(UserError, match="f, line 1 contains a lone surrogate"):
        read_prompts(b'{"prompt": "\\ud800"}', "f")


def test_lines_of_prompts_end_at_line_feeds_alone():
    """Inside a text, JSON does not escape the line separators of Unicode."""
    found = read_prompts('{"prompt": "a\u2028b\u0085c"}\r\n{"prompt": "d"}'.encode(), "f")
    assert [prompt.text for prompt in found] == ["a\u2028b\u0085c", "d"]


def test_what_a_stop_string_holds_back(capsys):
    """The last characters are held back, since they could be the beginning of a stop string."""
    terminal = _Terminal(["stop"])
    terminal.show("ab")
    assert capsys.readouterr().out == ""
    terminal.show("abcd")
    assert capsys.readouterr().out == "a"


@pytest.mark.parametrize("process", [0, 1])
def test_all_processes_run_the_same_programs(process, monkeypatch, capsys):
    """A callback selects the programs; only process 0 prints what it receives."""

    class Recorder:
        stop, method = (), Greedy()

        def continue_prompts(self, prompts, numbers, context_length, on_text):
            on_text("ab")
            return [[Continuation("abc", (1, 2), (0.0, 0.0), 0.0, "length")]]

    monkeypatch.setattr(jax, "process_index", lambda: process)
    continue_one(Recorder(), np.zeros(1, np.int32), 3)
    assert capsys.readouterr().out == ("" if process else "abc\n")


def test_what_the_vocabulary_cannot_express():
    """seqio's sample model knows no Chinese, and reads a line break as a space."""
    data = TextData("nowhere", vocabulary=MODEL)
    with pytest.raises(UserError, match="the prompt '火 f' contains '火', which"):
        Writer(None, {}, data, new_tokens=1).encode("火 f")
    with pytest.raises(UserError, match="is not valid UTF-8"):
        Writer(None, {}, data, new_tokens=1).encode("f\udcff")
    with pytest.raises(UserError, match="the stop string '火' would never match"):
        Writer(None, {}, data, new_tokens=1, stop=("火",))
    with pytest.raises(UserError, match=r"the stop string '\\n' would .*model turns it into ''"):
        Writer(None, {}, data, new_tokens=1, stop=("\n",))
    Writer(None, {}, data, new_tokens=1, stop=(" and ", "the", " "))
    Writer(None, {}, TextData("nowhere", vocabulary="bytes"), new_tokens=1, stop=("\n ", "火"))


def test_widths_waste_a_third_at_most():
    assert [width(n) for n in (1, 128, 129, 193, 300, 400, 8192)] == [
        *(128, 128, 192, 256, 384, 512, 8192)
    ]

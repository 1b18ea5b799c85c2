"""Data sets of suites: read in every official form, written once, refused with a reason."""

import json
import shutil
import zipfile
from pathlib import Path

import pytest
import sample_suites
from suite_data import QASPER, by_id, command, data_dir, examples, source, write

from fire_lm.errors import RunFailed, UserError
from fire_lm.tasks.suites import SUITES

__all__ = ["data_dir", "source"]  # fixtures


@pytest.mark.ci
def test_the_same_rows_from_a_folder_a_zip_file_and_tfds(source, data_dir, tmp_path):
    from fire_lm.data.corpora.tfds_writer import write_dataset

    zipped = sample_suites.write_suite("scrolls", tmp_path / "zip", zipped=True)
    records = sample_suites.scrolls("qasper")
    fields = ("id", "pid", "input", "output")

    def of_tfds(split):  # "" where the JSON lines have null
        return lambda: ((r["pid"], {f: r[f] or "" for f in fields}) for r in records[split])

    splits = {split: of_tfds(split) for split in records}
    write_dataset(tmp_path / "tfds", "scrolls", "1.0.0", fields, splits, files=1, config="qasper")
    for place in (zipped, zipped / "qasper.zip", source / "qasper", tmp_path / "tfds"):
        out = tmp_path / f"out_{place.name}"
        write(QASPER, place, out)
        for split in ("train", "validation", "test"):
            one, other = (
                sorted((e["inputs_pretokenized"], e["targets_pretokenized"], tuple(e["answers"]))
                       for e in examples("fire_lm:scrolls_qasper", folder, split))
                for folder in (out, data_dir)
            )  # fmt: skip
            assert one == other


@pytest.mark.ci
def test_a_second_run_does_nothing_and_other_files_are_refused(source, tmp_path):
    mine = tmp_path / "source"
    shutil.copytree(source / "qasper", mine / "qasper")
    first = write(QASPER, mine, tmp_path / "data")
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "data").rglob("*")}
    again = write(QASPER, mine, tmp_path / "data")
    assert (again.written, again.rows, again.left_out) == (False, first.rows, first.left_out)
    assert before == {path: path.stat().st_mtime_ns for path in (tmp_path / "data").rglob("*")}
    with (mine / "qasper" / "train.jsonl").open("a") as file:
        file.write("\n")
    with pytest.raises(UserError, match="was written from other files or with other settings"):
        write(QASPER, mine, tmp_path / "data")
    (tmp_path / "data/scrolls_qasper/1.0.0/metadata.json").unlink()
    with pytest.raises(UserError, match="was not written by `fire-lm corpus tasks`"):
        write(QASPER, mine, tmp_path / "data")


def test_a_failure_while_writing_leaves_nothing(source, tmp_path, monkeypatch):
    from fire_lm.tasks.suites.selection import Selection

    whole = Selection.rows

    def failing(self):
        yield from list(whole(self))[:3]
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(Selection, "rows", failing)
        with pytest.raises(UserError, match="Cannot write scrolls_qasper in .*: No space left"):
            write(QASPER, source, tmp_path)
    assert not (tmp_path / "scrolls_qasper" / "1.0.0").exists()
    assert write(QASPER, source, tmp_path).written


def rewritten(source: Path, folder: Path, **files: str | bytes | None) -> Path:
    """Copy Qasper with the files of some splits replaced or removed."""
    shutil.copytree(source / "qasper", folder / "qasper")
    for split, content in files.items():
        path = folder / "qasper" / f"{split}.jsonl"
        path.unlink()
        if content is not None:
            path.write_bytes(content.encode() if isinstance(content, str) else content)
    return folder


GOOD = json.dumps({"id": "1", "pid": "1_0", "input": "Q", "output": "a"}) + "\n"


@pytest.mark.parametrize(
    "files, told",
    [
        ({"validation": None}, "no split 'validation' .found: train, test.: models are finetuned"),
        ({"train": None}, "no split 'train'"),
        ({"train": ""}, "split 'train' of scrolls_qasper has no usable row .omitted rows: none"),
        (
            {"train": GOOD.replace('"a"', '""') * 2},
            "the split 'train' .* has no usable row .*(\\n)?.*omitted rows: 2 empty target",
        ),
        ({"validation": GOOD + '{"id": '}, "qasper/validation.jsonl line 2 is not a JSON object"),
        (
            {"train": GOOD + "[1]\n"},
            "qasper/train.jsonl line 2 is not a JSON object: its type is list",
        ),
        (
            {"train": GOOD.encode() + b'{"id": "caf\xe9"}'},
            "train.jsonl line 2 is not a JSON object",
        ),
        ({"train": "[" * 100_000}, "train.jsonl line 1 is not a JSON object"),
        (
            {"train": '{"id": "1"}\n'},
            "train.jsonl line 1: there is no field 'input' .existing fields: 'id'",
        ),
        ({"train": GOOD.replace('"Q"', "7")}, "line 1: the field 'input' is of type int"),
    ],
)
def test_files_that_cannot_be_used(source, tmp_path, files, told):
    with pytest.raises((UserError, RunFailed), match=told) as error:
        write(QASPER, rewritten(source, tmp_path / "source", **files), tmp_path / "data")
    assert str(error.value).count("\n") <= 1 and not (tmp_path / "data").exists()


def test_zip_files_that_are_damaged(source, tmp_path):
    (tmp_path / "qasper.zip").write_bytes(b"version https://git-lfs")
    with pytest.raises(RunFailed, match="qasper.zip is not a complete zip file"):
        write(QASPER, tmp_path, tmp_path / "data")
    with zipfile.ZipFile(tmp_path / "qasper.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        for file in (source / "qasper").iterdir():
            archive.write(file, f"qasper/{file.name}")
    content = bytearray((tmp_path / "qasper.zip").read_bytes())
    content[200:260] = bytes(60)
    (tmp_path / "qasper.zip").write_bytes(content)
    with pytest.raises(
        RunFailed, match=r"qasper.zip/qasper/\w+.jsonl line \d+: the file is damaged"
    ):
        write(QASPER, tmp_path, tmp_path / "data")


def test_the_command_names_what_is_missing_and_where_to_get_it(source, tmp_path, capsys):
    shutil.copytree(source / "qasper", tmp_path / "source" / "qasper")
    arguments = (f"--source={tmp_path / 'source'}", f"--data_dir={tmp_path / 'data'}")
    assert command("--suite=scrolls", *arguments) == 2
    told = capsys.readouterr().err
    missing = "gov_report, summ_screen_fd, qmsum, narrative_qa, quality, contract_nli"
    assert f"does not contain {missing}" in told
    assert "gov_report/train.jsonl, gov_report.zip or the TFDS data set scrolls/gov_report" in told
    assert "gov_report.zip from huggingface.co/datasets/tau/scrolls" in told
    assert "--tasks=qasper" in told
    assert command("--suite=scrolls", "--tasks=qasper", *arguments) == 0
    out = capsys.readouterr().out
    assert "validation: 20 rows; omitted: none" in out and "fire_lm:scrolls_qasper" in out


def test_the_command_counts_what_is_left_out(source, tmp_path, capsys):
    bad = GOOD.replace('"a"', '" "')
    more = rewritten(source, tmp_path / "source", train=GOOD + bad + GOOD + bad)
    arguments = (f"--source={more}", f"--data_dir={tmp_path / 'data'}", "--tasks=qasper")
    for told in ("train: 1 rows", "nothing to do"):
        assert command("--suite=scrolls", *arguments) == 0
        out = capsys.readouterr().out
        assert told in out and "2 empty target (first: qasper/train.jsonl line 2)" in out
        assert "1 duplicated id (first: qasper/train.jsonl line 3)" in out


@pytest.mark.parametrize(
    "arguments, told",
    [
        (("--suite=scrols",), "there is no suite scrols. Did you mean scrolls?"),
        (("--suite=scrolls", "--tasks=cola"), "no task cola. Known: "),
        (("--suite=scrolls",), "add --source=FOLDER, the folder"),
        (("--suite=scrolls", "--source=/nowhere/at_all"), "source /nowhere/at_all does not exist"),
        (("--suite=scrolls", "--sizes=3"), "--sizes applies only to generated suites"),
        (("--suite=long_eval", "--source=/tmp"), "is generated: omit --source"),
        (("--suite=long_eval", "--tasks=topics", "--sizes=31"), "topics has no exercises of size"),
        (("--suite=long_eval", "--seed=-1"), "is not a whole number"),
    ],
)
def test_commands_that_cannot_be_done(tmp_path, capsys, arguments, told):
    assert command(*arguments, f"--data_dir={tmp_path / 'data'}") == 2
    error = capsys.readouterr().err
    assert told in error and error.strip().count("\n") <= 1
    assert not (tmp_path / "data").exists()


@pytest.mark.ci
def test_exercises_are_those_of_the_seed(tmp_path, capsys):
    """A size has the same exercises whichever other sizes are written; splits share none."""
    lines = "fire_lm:long_eval_lines"
    for folder, sizes, seed in (("a", "3,6", "0"), ("b", "6", "0"), ("c", "6", "1")):
        settings = ("--train_size=4", "--rows=40", "--examples=8", f"--seed={seed}")
        place = f"--data_dir={tmp_path / folder}"
        assert (
            command("--suite=long_eval", "--tasks=lines", f"--sizes={sizes}", place, *settings) == 0
        )
    assert "size_6: 8 rows" in capsys.readouterr().out

    def inputs(folder: str, split: str) -> list[bytes]:
        return sorted(e["inputs_pretokenized"] for e in examples(lines, tmp_path / folder, split))

    assert inputs("a", "size_6") == inputs("b", "size_6") != inputs("c", "size_6")
    assert inputs("a", "train") == inputs("b", "train")
    assert not set(inputs("a", "train")) & set(inputs("a", "validation"))
    counts = {text.count(b"\nline ") for text in inputs("a", "train")}
    assert counts == {1, 2, 3, 4}
    assert {text.count(b"\nline ") for text in inputs("a", "size_3")} == {3}


@pytest.mark.ci
def test_the_builders_of_tfds_make_the_rows_of_the_json_lines(tmp_path, monkeypatch):
    """TFDS's own SuperGLUE builder is given the official files that it would otherwise download."""
    from fire_lm.data.quiet_tensorflow import tfds, without_their_warnings

    official = sample_suites.write_suite("glue_super_glue", tmp_path / "source")

    class Downloaded:
        downloaded_size = 0

        def download_and_extract(self, url: str) -> str:
            return str(official)

    for task in SUITES["glue_super_glue"].tasks:
        if not task.name.startswith("super_glue"):
            continue
        with without_their_warnings():
            builder = tfds.builder(task.origin.tfds_names[0], data_dir=str(tmp_path / "tfds"))
            monkeypatch.setattr(builder, "_make_download_manager", lambda **unused: Downloaded())
            builder.download_and_prepare()
        for place, out in ((tmp_path / "tfds", "a"), (official, "b")):
            write(task, place, tmp_path / out)
        for split in ("train", "validation", "test"):
            one, other = (
                by_id(examples(f"fire_lm:{task.name}", tmp_path / out, split)) for out in "ab"
            )
            assert one.keys() == other.keys()
            for key, example in one.items():
                assert example["group"] == other[key]["group"]
                for field in ("inputs", "targets", "answers", "choices"):
                    assert list(example[field]) == list(other[key][field])

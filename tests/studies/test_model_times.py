"""scripts/studies/model_times.py: the times of the model benchmark as a table and a figure."""

import json

import model_times
import pytest
from command import EVIDENCE, refusing

BENCH = EVIDENCE / "bench_model.json"


def test_times_of_one_length_are_a_table_and_of_two_a_figure(tmp_path, capsys):
    assert refusing(model_times.main, [str(BENCH)]) == 0
    text = capsys.readouterr().out
    assert "5251.7 ms, x1.17" in text and ".svg" not in text, "of one length there is no line"
    times = json.loads(BENCH.read_text())
    times["rows"] += [{**row, "length": 2 * row["length"]} for row in times["rows"]]
    (tmp_path / "two.json").write_text(json.dumps(times))
    page = tmp_path / "page"
    assert refusing(model_times.main, [str(tmp_path / "two.json"), f"--output={page}"]) == 0
    assert "2048 to 4096 tokens" in (page / "report.md").read_text()
    assert (page / "forward_time.svg").exists()


def test_a_missing_file_is_refused(capsys):
    assert refusing(model_times.main, ["nowhere.json"]) == 2
    assert "there is no file nowhere.json" in capsys.readouterr().err


@pytest.mark.parametrize(
    "text", ["", "[1, 2]", BENCH.read_text()[:-40], '{"rows": []}', '{"benchmark": "model"}']
)
def test_a_damaged_or_foreign_file_is_told(text, tmp_path, capsys):
    (tmp_path / "bench.json").write_text(text)
    assert refusing(model_times.main, [str(tmp_path / "bench.json")]) == 1
    assert "was not written by `fire-lm bench model`, or is damaged" in capsys.readouterr().err

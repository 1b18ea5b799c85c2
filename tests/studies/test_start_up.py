"""scripts/studies/start_up.py: the table of times before the first step."""

import pytest
import start_up
from command import refusing

from fire_lm.errors import RunFailed


def test_the_table_has_the_least_of_the_rounds(monkeypatch, capsys):
    took = iter([30.0, 31.0, 9.0, 29.0, 32.0, 9.5])
    caches = []

    def start(encoding, data_dir, folder, cache):
        caches.append(cache)
        seconds = next(took)
        return start_up.Start(seconds, 2 * seconds, seconds / 2)

    monkeypatch.setattr(start_up, "start", start)
    assert refusing(start_up.main, ["data", "--encodings=fire"]) == 0
    rows = [line.split() for line in capsys.readouterr().out.splitlines()[1:]]
    assert ["fire", "off", "29.0", "58.0", "14.5"] in rows
    assert ["fire", "second", "9.0", "18.0", "4.5"] in rows
    off, first, second = caches[:3]
    assert off is None and first == second and caches[4] != first, "a round starts anew"


def test_a_failed_run_is_told(tmp_path, monkeypatch):
    monkeypatch.setattr(start_up, "_CPU_BEFORE_STEP", "raise SystemExit('no data')")
    with pytest.raises(RunFailed, match="a run of fire failed:\nno data"):
        start_up.start("fire", "nowhere", tmp_path, None)

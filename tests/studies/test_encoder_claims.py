"""What docs/synthetic_results.md says about encoders follows from docs/evidence."""

from study_pairs import page
from synthetic_tables import accuracies_of, longer, trained, tries


def test_the_search_for_tasks():
    cheap, small = {}, {}
    for task, rows in tries().items():
        for row in rows:
            setting = row["steps"], row["batch"], row["learning_rate"]
            if setting == ("2000", "32", "0.001"):
                cheap[task] = float(row["accuracy"])
            elif setting == ("4000", "16", "0.001"):
                small[task] = float(row["accuracy"])
    assert len(small) == 5 and all(small[task] > cheap[task] for task in small)
    learned = {task for task, rows in tries().items() for row in rows if row["learned"] == "True"}
    assert len(learned) == 4 and len(tries()) == 15
    assert "Four of 15 tasks are learned." in page("synthetic_results.md")


def test_encoders_that_reverse_strings():
    arms = {
        name: run for name, (run,) in accuracies_of("synthetic_encoders")["ReverseString"].items()
    }
    assert len({name.partition(",")[0] for name in arms}) == 9
    plain = {name: run for name, run in arms.items() if ", " not in name}
    drawn = [run for name, run in arms.items() if name.endswith(", random")]
    farther = sorted(((run[60], name) for name, run in plain.items() if 60 in run), reverse=True)
    assert [name for _, name in farther[:2]] == ["kerple_log", "alibi"]
    told = page("synthetic_results.md")
    rope = plain["rope"]
    assert all(trained(run) < 95 for name, run in arms.items() if name != "rope")
    assert (
        f"gives {trained(rope):.1f} % at trained lengths and {longer(rope):.1f} % at longer" in told
    )
    assert (
        f"give {farther[0][0]:.1f} and {farther[1][0]:.1f} % of the symbols of strings of 60, "
        f"the others at most {farther[2][0]:.1f} %" in told
    )
    best = max(map(trained, drawn))
    assert f"no encoding gives more than {best:.1f} % at trained lengths" in told
    assert f"nor more than {max(map(longer, drawn)):.1f} % at longer ones" in told

"""What docs/synthetic_results.md says about encoders follows from docs/evidence."""

from collections.abc import Callable

from study_pairs import page
from synthetic_tables import Points, accuracies_of, guess, longer, trained, tries

from fire_lm.reporting.accuracies import guesses


def test_the_search_for_tasks():
    cheap, small = {}, {}
    for task, rows in tries().items():
        for row in rows:
            setting = row["steps"], row["batch"], row["learning_rate"]
            if setting == ("2000", "32", "0.001"):
                cheap[task] = float(row["accuracy"])
            elif setting == ("4000", "16", "0.001"):
                small[task] = float(row["accuracy"])
    assert len(small) == 6 and sum(small[task] > cheap[task] for task in small) == 5
    assert "on five of the six tasks on which both were tried" in page("synthetic_results.md")
    learned = {task for task, rows in tries().items() for row in rows if row["learned"] == "True"}
    assert len(learned) == 7 and len(tries()) == 15
    assert "Seven of 15 tasks are learned." in page("synthetic_results.md")


def means(task: str, mean: Callable[[Points], float]) -> tuple[dict[str, float], dict[str, float]]:
    """Return the means of encoders by encoding, at positions 0, 1, 2, ... and at random ones.

    A learned table has no rows for longer strings at positions 0, 1, 2, ...
    """
    arms = accuracies_of("synthetic_encoders")[task]
    ((_,), *rest) = arms.values()
    assert all(len(runs) == 1 for runs in rest), "one seed"
    found = {name: mean(run) for name, (run,) in arms.items() if mean is trained or max(run) == 500}
    drawn = {name.partition(",")[0]: found[name] for name in found if name.endswith(", random")}
    return {name: value for name, value in found.items() if ", " not in name}, drawn


def test_encoders_that_sort():
    told = page("synthetic_results.md")
    at_first, _ = means("BucketSort", trained)
    assert at_first.pop("nope") < guess("BucketSort", trained)
    assert f"give at least {min(at_first.values()):.1f} % at trained lengths" in told
    plain, drawn = means("BucketSort", longer)
    assert len(drawn) == 8 and min(drawn.values()) > guess("BucketSort", longer) > 90
    span = f"{min(drawn.values()):.1f} to {max(drawn.values()):.1f} %"
    assert f"all eight give {span} over longer lengths" in told
    chance = f"where guessing gives {guess('BucketSort', longer):.1f} %, all eight then give {span}"
    assert chance in told
    gains = {name for name in plain if name in drawn and drawn[name] > plain[name]}
    assert gains == drawn.keys() - {"fire", "learned"}, "a learned table has no rows otherwise"
    (kerple,) = accuracies_of("synthetic_encoders")["BucketSort"]["kerple_log, random"]
    near = [n for n, c in guesses("BucketSort", [*kerple]).items() if abs(kerple[n] - c) < 2]
    assert near == [n for n in kerple if n >= 120] and "from 120 symbols on" in told
    fire, most = plain.pop("fire"), max(plain.values())
    assert most < guess("BucketSort", longer)
    assert f"FIRE gives {fire:.1f} % and the others at most {most:.1f} %, less than guess" in told
    assert f"FIRE gives {fire:.1f} % and the others at most {most:.1f} %." in told


def test_encoders_on_even_pairs():
    told = page("synthetic_results.md")
    plain, drawn = means("EvenPairs", trained)
    assert f"{plain.pop('fire_g'):.1f} {plain.pop('learned'):.1f}" == "100.0 100.0"
    waves, rope = plain.pop("sinusoidal"), drawn.pop("rope")
    most = max(*plain.values(), *drawn.values())
    assert f"sinusoids nearly ({waves:.1f} %) and, at random positions, RoPE in part" in told
    assert f"RoPE in part ({rope:.1f} %); the others give at most {most:.1f} %." in told
    assert any(row["learned"] == "True" for row in tries()["even_pairs"])
    far, far_drawn = means("EvenPairs", longer)
    gated, rope = far.pop("fire_g"), far_drawn.pop("rope")
    most = max(*far.values(), *far_drawn.values())
    assert f"FIRE-G gives {gated:.1f} %, RoPE at random positions {rope:.1f} % and the" in told
    assert f"the others at most {most:.1f} %." in told
    assert f"by FIRE-G alone ({gated:.1f} %)" in told


def test_encoders_that_navigate_cycles():
    told = page("synthetic_results.md")
    plain, drawn = means("CycleNavigation", trained)
    assert len(plain) == 9 and f"give at least {min(plain.values()):.1f} % at trained" in told
    alibi, learned = drawn.pop("alibi"), drawn.pop("learned")
    assert alibi < guess("CycleNavigation", trained) and f"learns nothing ({alibi:.1f} %)" in told
    assert f"gives {learned:.1f} % and the others at least {min(drawn.values()):.1f} %." in told
    far, far_drawn = means("CycleNavigation", longer)
    most = max(*far.values(), *far_drawn.values())
    chance = guess("CycleNavigation", longer)
    assert f"guessing gives {chance:.1f} %, no model gives more than {most:.1f} %." in told


def test_encoders_that_reverse_strings():
    told = page("synthetic_results.md")
    plain, drawn = means("ReverseString", trained)
    far, far_drawn = means("ReverseString", longer)
    assert len(plain) == 9 and all(value < 95 for name, value in plain.items() if name != "rope")
    assert f"{plain['rope']:.1f} % at trained lengths and {far['rope']:.1f} % at longer" in told
    assert f"no encoding gives more than {max(drawn.values()):.1f} % at trained lengths" in told
    assert f"nor more than {max(far_drawn.values()):.1f} % at longer ones" in told

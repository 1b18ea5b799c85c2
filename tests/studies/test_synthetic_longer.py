"""docs/synthetic_results.md agrees with our measurements of longer training."""

import pytest
from test_synthetic_results import EVIDENCE, PAGE, span
from test_synthetic_seeds import Points, at_500, longer, measured, seeds, trained

__all__ = ["seeds"]  # a fixture


@pytest.fixture(scope="module")
def both(seeds) -> dict[tuple[str, str], tuple[Points, Points]]:
    """Return the accuracies with seed 0 after 3,000 and after 15,000 steps, by task and arm."""
    found = measured(EVIDENCE.with_name("synthetic_longer"))
    assert {len(runs) for arms in found.values() for runs in arms.values()} == {1}
    return {
        (task, name): (seeds[task][name][0], runs[0])
        for task in seeds
        for name, runs in sorted(found.get(task, {}).items())
    }


def test_the_page_shows_what_longer_training_changes(both):
    rows = [
        f"| {task} | {name} | {trained(short):.1f} | {trained(long):.1f} | {longer(short):.1f} | "
        f"{longer(long):.1f} | {at_500(short):.1f} | {at_500(long):.1f} |"
        for (task, name), (short, long) in both.items()
    ]
    head = "| task | encoding | trained, 3,000 | 15,000 | longer, 3,000 | 15,000 | at 500, 3,000 | "
    page = PAGE.read_text()
    assert "\n".join([f"{head}15,000 |", f"|{' --- |' * 8}", *rows]) + "\n\n" in page


def test_the_page_says_that_longer_training_does_not_teach_longer_exercises(both):
    page = " ".join(PAGE.read_text().split())
    after = {key: long for key, (_, long) in both.items()}
    reverse = {name: run for (task, name), run in after.items() if task == "ReverseString"}
    learned = [trained(run) for name, run in reverse.items() if name != "nope"]
    stack = trained(after["StackManipulation", "rope"])
    assert (
        f"all models except NoPE score {span(learned)} % on reversing, and RoPE scores "
        f"{stack:.1f} % on stack manipulation. Over longer lengths, no model scores more than "
        f"{max(map(longer, after.values())):.1f} %, and at 500 symbols none more than "
        f"{max(map(at_500, after.values())):.1f} %."
    ) in page

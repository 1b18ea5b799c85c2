"""scripts/studies/papers_order.py: the order of encodings at each budget beside the paper's."""

import papers_order
import pytest
from command import EVIDENCE
from sample_budgets import LOSSES, only, results

from fire_lm.reporting.budgets import by_budget
from fire_lm.reporting.gather import gather
from fire_lm.reporting.page import Picture


def test_a_single_run_has_no_test():
    own = only(results(seeds=(0,)))
    assert str(papers_order.orders(own)[own.tokens[0]][4]) == "-0.33 (no test)"


def test_kendalls_tau_counts_pairs_and_its_range_those_that_are_not_told_apart():
    """In the paper, fire < kerple_log < alibi at all three lengths."""
    own = only(results())
    few, many = own.tokens
    found = papers_order.orders(own)
    trained, four = found[few][1], found[few][4]
    assert (trained.tau, trained.pairs) == (1, 3) and trained.papers == "fire < kerple_log < alibi"
    # Seeds differ by 0.05, so that a pair that differs by 0.03 is not told apart.
    assert trained.tested and trained.most == 1 and trained.least < 1
    assert four.tau == pytest.approx(-1 / 3), "fire is last, and the other pair as in the paper"
    assert found[many][4].tau == -1 and not papers_order.same_encodings(found)
    assert "not comparable" in papers_order.order_words(found)[1]
    numbers, words = papers_order.order_tables(own, found)
    assert numbers.rows[0][1] == "3" and numbers.rows[0][4].startswith("-0.33 (")
    assert words.rows[-1] == ["the paper", *[trained.papers] * 3]
    close = {**LOSSES, ("alibi", 1000): (9.0, 9.0, 9.0)}
    clear = papers_order.orders(only(results(close)))[few][1]
    assert (clear.least, clear.tau, clear.most) == (pytest.approx(1 / 3), 1, 1)


def test_kendalls_tau_leaves_out_pairs_that_the_papers_digits_do_not_separate():
    """In the paper, FIRE has 3.046 at twice the length, and with GeLU 3.05."""
    more = {("fire_gelu", 1000): (1.6, 1.6, 1.6)}
    found = papers_order.orders(only(results({**LOSSES, **more})))[1_024_000]
    assert (found[1].pairs, found[2].pairs) == (6, 5)


def test_the_order_tells_apart_what_the_range_does():
    """Both are among all arms, of which the paper has two at the larger budget."""
    (own,) = by_budget(gather([str(EVIDENCE / name) for name in ("frozen", "budgets")])).values()
    trained = papers_order.orders(own)[own.tokens[-1]][1]
    assert (trained.least, trained.most) == (-1, 1)
    assert trained.ours == "fire (a), kerple_log (a)"


def test_the_section_draws_the_order():
    (section,) = papers_order.sections(results())
    *_, picture = section.parts
    assert isinstance(picture, Picture)
    assert "x4 -0.33, -1.00" in picture.alt and "not joined" in picture.caption

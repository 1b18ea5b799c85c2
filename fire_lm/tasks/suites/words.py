"""The words and sentences from which LongEval's exercises are built."""

from __future__ import annotations

ADJECTIVES = tuple(
    "able amber brave brief bright broad calm careful clear clever cold cool crisp curious dark "
    "deep distant dry eager early even fair faint fast fine firm fresh gentle glad golden grand "
    "green happy heavy hollow honest humble idle keen kind large late lively lonely loud lucky "
    "mild modest narrow neat noble odd old pale patient plain polite proud quick quiet rapid rare "
    "ripe rough round sharp shy silent simple slow smooth soft solid steady".split()
)
NOUNS = tuple(
    "acorn anchor apple arrow badge barn basket beacon bell bridge bucket button cabin candle "
    "canyon castle cello chair circle cliff clock cloud comet copper cotton crane crown desert "
    "door eagle ember falcon feather fern field flute forest fountain garden glacier hammer harbor "
    "island jacket kettle ladder lantern lemon lion maple meadow mirror needle oak ocean orchard "
    "otter paper pebble pepper piano pillow planet pond rabbit river saddle shell spoon spring "
    "stone tiger tower tunnel valley violin".split()
)
TOPICS = (
    "the migration of birds",
    "the history of printing",
    "baking bread at home",
    "life in the deep sea",
    "the design of bridges",
    "learning a second language",
    "the art of bookbinding",
    "energy from the wind",
    "the care of old trees",
    "how volcanoes form",
    "the rules of chess",
    "weather forecasts",
    "the making of glass",
    "walking in the mountains",
    "the economy of small towns",
    "music for the cello",
    "the study of meteorites",
    "keeping bees",
    "public libraries",
    "the repair of clocks",
    "rivers and their floods",
    "sleep and memory",
    "the training of guide dogs",
    "maps of the Middle Ages",
    "the growing of rice",
    "photography at night",
    "the writing of short stories",
    "trains and timetables",
    "vaccines and their tests",
    "gardens on roofs",
)
# Pairs of a question and its answer that fit any topic.
ASPECTS = (
    (
        "Where should a beginner start?",
        "Start with one good introduction and read it twice. Take notes in your own words, and try "
        "to explain each idea to a friend. Leave the details for later, because they make sense "
        "only after the main lines are clear.",
    ),
    (
        "Why does it matter today?",
        "It touches more of daily life than people expect. Decisions about money, health and "
        "education depend on it, and those who know a little about it judge the news with more "
        "care.",
    ),
    (
        "How did people think about it a hundred years ago?",
        "They knew less, but they observed patiently. Many of the terms that we use come from that "
        "time, and some of the old questions are still open. Letters and diaries show how lively "
        "the debate was.",
    ),
    (
        "What are the most common mistakes?",
        "The first is impatience. The second is to trust a single source. Good practice is to "
        "compare, to measure twice and to write down what went wrong, so that the same mistake is "
        "not made again.",
    ),
    (
        "Is it expensive?",
        "Not at first. A modest budget is enough for the first year, and much can be borrowed or "
        "bought second-hand. Costs rise later, when one wants better tools and more time.",
    ),
    (
        "Who are the people behind it?",
        "There are professionals, of course, but also many volunteers. They meet in clubs and on "
        "weekends, share what they have learned, and welcome newcomers who ask questions.",
    ),
    (
        "What surprised you most about it?",
        "How much depends on small things. A change that looks trivial can decide whether the "
        "whole effort succeeds, and experts often notice it at a glance.",
    ),
    (
        "How will it change in the next years?",
        "Tools will become cheaper and data easier to find. The hard part will stay the same: to "
        "ask the right question and to be honest about what is not known.",
    ),
    (
        "Are there good books about it?",
        "Several. Look for one that was revised in the last ten years, with many pictures and a "
        "list of sources. Older books are charming, but parts of them are out of date.",
    ),
    (
        "What would you recommend for a weekend?",
        "Visit a place where it can be seen, and talk to somebody who works there. Take a "
        "notebook, leave the camera at home, and stay until one question is answered.",
    ),
)

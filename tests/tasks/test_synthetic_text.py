"""Retrieval from text: the answer is the one that a reader of the prompt would give."""

import collections
import re
import zlib

import numpy as np
import pytest

from fire_lm.errors import UserError
from fire_lm.tasks import synthetic
from fire_lm.tasks.synthetic import haystack
from fire_lm.tasks.synthetic.exercises import fixed_samples

COUNTING = {"common": 3, "times": 4, "other_times": 2}


def text_of(symbols):
    return bytes(haystack.BYTES[symbol] for symbol in symbols)


def read(task, extra, count=3):
    """Yield (prompt, answer) as text, for the shortest exercises and longer ones."""
    for length in (task.shortest, *(task.shortest + more for more in extra)):
        for sample in fixed_samples(task, length, seed=2, rows=range(count)):
            assert len(sample.inputs) == task.input_length(length) <= length
            assert len(sample.answer) == task.answer_length(length)
            assert sample.answer.max() < task.answer_symbols
            prompt, answer = (text_of(part) for part in (sample.inputs, sample.answer))
            yield prompt.decode(), answer.decode()


def test_symbols_are_bytes_with_the_digits_first():
    assert sorted(haystack.BYTES) == list(range(256))
    every = bytes(range(256))
    assert text_of(haystack.symbols_of(every)) == every
    assert haystack.symbols_of(b"0189").tolist() == [0, 1, 8, 9]


def test_passkey():
    for prompt, answer in read(synthetic.Passkey(), (1, 64, 901)):
        assert re.findall(r"The pass key is (\d{5})\.", prompt) == [answer]
        assert prompt.endswith("The pass key is ")
        noise = re.sub(r"The pass key is \d.*?is the pass key\. |What is.*", "", prompt)
        assert haystack.NOISE.decode() * 20 == noise + (haystack.NOISE.decode() * 20)[len(noise) :]


@pytest.mark.parametrize("keys, values, queries", [(1, 1, 1), (4, 1, 1), (1, 4, 1), (4, 2, 3)])
def test_needles(keys, values, queries):
    for prompt, answer in read(synthetic.Needles(keys, values, queries), (1, 333)):
        numbers = collections.defaultdict(list)
        for word, number in re.findall(r"numbers for (\w+) is: (\d{7})\.", prompt):
            numbers[word].append(number)
        assert len(numbers) == keys and all(len(found) == values for found in numbers.values())
        asked = re.search(r"numbers for ([\w, ]+)\? They are $", prompt)[1].split(", ")
        assert len(asked) == queries
        assert answer == "".join("".join(numbers[word]) for word in asked)


def test_the_exercises_of_needles_are_those_of_earlier_versions():
    """Results of different versions are comparable only if the exercises are the same."""
    samples = fixed_samples(synthetic.Needles(4, 2, 3), 900, seed=2, rows=range(2))
    symbols = np.concatenate([np.concatenate([s.inputs, s.answer]) for s in samples])
    assert zlib.crc32(symbols.astype(np.int32).tobytes()) == 3267709276


UUID = r"[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}"


@pytest.mark.parametrize("haystack_type", ["text", "needles"])
@pytest.mark.parametrize(
    "settings, key, value",
    [
        ({}, r"[a-z]{6}", r"\d{7}"),
        ({"value_type": "uuids"}, r"[a-z]{6}", UUID),
        ({"key_type": "uuids", "value_type": "uuids", "keys": 2, "queries": 2}, UUID, UUID),
        ({"keys": 3, "values": 2, "queries": 2}, r"[a-z]{6}", r"\d{7}"),
    ],
)
def test_needles_that_are_uuids_or_hidden_in_other_needles(haystack_type, settings, key, value):
    task = synthetic.Needles(**settings, haystack=haystack_type)
    kind = settings.get("value_type", "numbers")
    needle = f"One of the special magic {kind} for ({key}) is: ({value})\\. "
    for prompt, answer in read(task, (1, 333, 1200)):
        memory = collections.defaultdict(list)
        for name, found in re.findall(needle, prompt):
            memory[name].append(found)
        asked = re.search(r"for ([^.]+)\? They are $", prompt)[1].split(", ")
        assert len(asked) == task.queries
        assert answer == "".join("".join(memory[name]) for name in asked)
        assert sum(len(found) == task.values for found in memory.values()) >= task.keys
        hay = re.sub(needle + r"|What are the.*", "", prompt)
        assert haystack.NOISE.decode() * 20 == hay + (haystack.NOISE.decode() * 20)[len(hay) :]
        if haystack_type == "text":
            assert len(memory) == task.keys
        else:  # There is no room for another needle.
            assert len(hay) < len(re.search(needle, prompt)[0])
    assert task.haystack == "text" or len(memory) > 3 * task.keys


def test_what_is_known_of_a_uuid_does_not_count():
    task = synthetic.Needles(value_type="uuids", values=2)
    counted = task.counted(haystack.symbols_of(2 * b"c0ffee00-1234-4abc-8def-0123456789ab"))
    known = "".join("x" if counts else "." for counts in counted)
    assert known == 2 * "xxxxxxxx.xxxx..xxx..xxx.xxxxxxxxxxxx"


@pytest.mark.parametrize(
    "settings, told",
    [
        ({"haystack": "essays"}, r"haystack is 'essays': it must be one of \('text', 'needles'\)"),
        ({"value_type": "words"}, "value_type is 'words'"),
        ({"haystack": "needles", "text": "a.txt"}, "text has no use if haystack = 'needles'"),
    ],
)
def test_forms_of_needles_that_do_not_exist_are_refused(settings, told):
    with pytest.raises(UserError, match=told):
        synthetic.Needles(**settings)


@pytest.mark.parametrize("chains", [1, 3])
def test_variable_tracking(chains):
    for prompt, answer in read(synthetic.VariableTracking(hops=3, chains=chains), (1, 333)):
        memory = {}
        for name, source in re.findall(r"VAR (\w+) = (?:VAR )?(\w+)\.", prompt):
            memory[name] = memory.get(source, source)  # a name is assigned before it is copied
        asked = re.search(r"value (\d+) are $", prompt)[1]
        assert len(memory) == 4 * chains
        assert answer == "".join(name for name, value in memory.items() if value == asked)


def test_common_words():
    for prompt, answer in read(synthetic.CommonWords(**COUNTING), (1, 333)):
        words = prompt.removesuffix("The most common words are ").split()
        counts = collections.Counter(words)
        assert sorted(set(counts.values())) == [2, 4]
        assert answer == "".join(word for word in counts if counts[word] == 4) and len(answer) == 15


@pytest.mark.parametrize("exponent", [1, 2.0, 3.5])
def test_frequent_words(exponent):
    for prompt, answer in read(synthetic.FrequentWords(exponent), (1, 333, 3000)):
        words = prompt.removesuffix("The three most frequent words are ").split()
        ranked = collections.Counter(words).most_common()
        assert answer == "".join(word for word, _ in ranked[:3])
        assert ranked[0][1] > ranked[1][1] > ranked[2][1] > ranked[3][1]


@pytest.mark.parametrize(
    "task, settings, told",
    [
        ("FrequentWords", {"exponent": 0.0}, "would be ambiguous; use an exponent from 0.5 to 8"),
        ("FrequentWords", {"exponent": 20}, "would be ambiguous"),
        ("CommonWords", {"times": 3}, "CommonWords.times is 3 and other_times is 3: times must"),
        ("CommonWords", {"other_times": 0}, "which must be 1 or more"),
    ],
)
def test_words_that_are_equally_frequent_are_refused(task, settings, told):
    with pytest.raises(UserError, match=told):
        getattr(synthetic, task)(**settings)


def test_a_local_file_is_the_haystack(tmp_path):
    path = tmp_path / "text.txt"
    path.write_text("one two three four five six seven ")
    for prompt, _ in read(synthetic.Passkey(text=str(path)), (200,)):
        rest = re.sub(r"The pass key is \d.*?is the pass key\. |What is.*", "", prompt)
        assert rest in path.read_text() * 20
    with pytest.raises(UserError, match="cannot read .*nowhere"):
        list(read(synthetic.Passkey(text=str(tmp_path / "nowhere")), (1,)))


def test_a_prompt_that_holds_no_needle_is_refused():
    task = synthetic.Passkey()
    with pytest.raises(UserError, match=f"Passkey has no exercise of length {task.shortest - 1}"):
        fixed_samples(task, task.shortest - 1, seed=0, rows=range(1))


def test_needles_stand_at_every_depth():
    task = synthetic.Passkey()
    samples = fixed_samples(task, 1000, seed=0, rows=range(400))
    places = [text_of(sample.inputs).index(b"The pass key") for sample in samples]
    room = 1000 - task.shortest  # positions in the filler, including its end
    fifths = collections.Counter(min(5 * place // room, 4) for place in places)
    assert set(fifths) == set(range(5)) and min(fifths.values()) > 50

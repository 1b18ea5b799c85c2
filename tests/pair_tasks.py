"""A user's module that registers input-target tasks with seqio; tests load it with --import.

A line of its files is `id TAB input TAB answer|answer`.
"""

import os

import seqio
import tensorflow as tf

BYTES = {name: seqio.Feature(seqio.ByteVocabulary()) for name in ("inputs", "targets")}
FOLDER = os.environ.get("PAIR_TASKS_TEXT", "/nowhere")
FILES = {split: f"{FOLDER}/{split}-*.txt" for split in ("train", "validation")}


def fields(lines):
    def of_line(line):
        parts = tf.strings.split(line, "\t")
        answers = tf.strings.split(parts[2], "|")
        return {"id": parts[0], "inputs": parts[1], "targets": answers[0], "answers": answers}

    return lines.map(of_line)


def exact(targets, predictions):
    """Return the percentage of predictions that are one of the answers listed in their target."""
    found = [prediction in target for target, prediction in zip(targets, predictions, strict=True)]
    return {"exact": 100.0 * sum(found) / len(found)}


def answers_of(text, example=None, is_target=False):
    return [one.decode() for one in example["answers"]] if is_target else text


def add(name, *more, keep=lambda example: True, postprocess=answers_of):
    seqio.TaskRegistry.add(
        name,
        source=seqio.TextLineDataSource(FILES),
        preprocessors=[
            fields,
            lambda examples: examples.filter(keep),
            seqio.preprocessors.tokenize,
            *more,
        ],
        output_features=BYTES,
        postprocess_fn=postprocess,
        metric_fns=[exact],
    )


if "pairs" not in seqio.TaskRegistry.names():  # a test process imports this once
    add("pairs")
    add("pairs_ended", seqio.preprocessors.append_eos)
    add("pairs_short", keep=lambda example: tf.strings.length(example["inputs"]) < 12)
    seqio.MixtureRegistry.add("pairs_both", [("pairs", 2.0), ("pairs_short", 1.0)])

"""A user's module that registers tasks with seqio, from text files; tests name it by --import."""

import os

import seqio
import tensorflow as tf

BYTES = {"targets": seqio.Feature(seqio.ByteVocabulary())}
FOLDER = os.environ.get("SEQIO_TASKS_TEXT", "/nowhere")
FILES = {split: f"{FOLDER}/{split}-*.txt" for split in ("train", "validation")}
TOKENS = (
    lambda dataset: dataset.map(lambda line: {"targets": line}),
    seqio.preprocessors.tokenize,
    seqio.preprocessors.append_eos,
)


def generated(split, shuffle_files, seed=None):
    """Python code makes the examples, so that no place in them can be saved."""
    del split, shuffle_files, seed
    return tf.data.Dataset.from_generator(
        lambda: ({"targets": f"line {number}"} for number in range(1000)),
        output_signature={"targets": tf.TensorSpec([], tf.string)},
    )


def add(name, source=None, preprocessors=TOKENS, features=BYTES):
    source = source or seqio.TextLineDataSource(FILES)
    seqio.TaskRegistry.add(
        name, source=source, preprocessors=list(preprocessors), output_features=features
    )


if "mine" not in seqio.TaskRegistry.names():  # a test process imports it once
    add("mine")
    add("other", preprocessors=(lambda lines: lines.filter(lambda x: x != "b"), *TOKENS))
    add(
        "generated",
        seqio.FunctionDataSource(generated, splits=["train", "validation"]),
        TOKENS[1:],
    )
    add("two_sided", features={**BYTES, "inputs": seqio.Feature(seqio.ByteVocabulary())})
    add("cached", preprocessors=(*TOKENS[:2], seqio.CacheDatasetPlaceholder(), TOKENS[2]))
    add("passed", features={"targets": seqio.Feature(seqio.PassThroughVocabulary(10))})
    seqio.MixtureRegistry.add("both", [("mine", 3.0), ("other", 1.0)])

"""The tokenisation of a task's examples, which reads only the required part of a long input.

The inputs of NarrativeQA are whole books and film scripts of up to a million characters, of which
a row of 8192 tokens keeps the first 40,000 or so.
"""

from __future__ import annotations

from collections.abc import Mapping

from fire_lm.data import vocabularies
from fire_lm.data.quiet_tensorflow import seqio, tf

# English text has four to five characters per token. If the part of an input that is read has too
# few tokens, the whole input is read, so this number does not affect the tokens that are kept.
_CHARACTERS_PER_TOKEN = 6
# The number of characters within which the end of the part is chosen.
_WINDOW = 1000
# The last space between two ASCII letters or digits, where no rule of normalisation applies.
_LAST_SPACE = r"(?s)^(.*[0-9A-Za-z]) [0-9A-Za-z].*$"


def tokenize(
    dataset: tf.data.Dataset,
    output_features: Mapping[str, seqio.Feature],
    sequence_length: Mapping[str, int | None] | None = None,
) -> tf.data.Dataset:
    """Tokenise like `seqio.preprocessors.tokenize`, but only as far as `sequence_length` requires.

    At least the first `sequence_length["inputs"]` tokens of an input, or all of them if there are
    fewer, are the same as if the whole input were tokenised.
    """

    @tf.autograph.experimental.do_not_convert
    def tokenized(example: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        tokenized = dict(example)
        for name, feature in output_features.items():
            limit = (sequence_length or {}).get(name)
            tokenized[f"{name}_pretokenized"] = example[name]
            tokenized[name] = first_tokens(feature.vocabulary, example[name], limit)
        return tokenized

    return dataset.map(tokenized, num_parallel_calls=tf.data.AUTOTUNE)


def first_tokens(vocabulary: seqio.Vocabulary, text: tf.Tensor, limit: int | None) -> tf.Tensor:
    """Return the tokens of a text; at least the first `limit` are the same as for the whole text.

    Later tokens may be missing or differ. If `limit` is None, all tokens are returned.
    """

    def of_all() -> tf.Tensor:
        return vocabulary.encode_tf(text)

    if limit is None or not vocabularies.divides_at_spaces(vocabulary):
        return of_all()
    certain = limit * _CHARACTERS_PER_TOKEN

    def of_part() -> tf.Tensor:
        window = tf.strings.substr(text, certain, _WINDOW, unit="UTF8_CHAR")
        kept = tf.strings.regex_replace(window, _LAST_SPACE, r"\1")
        part = tf.strings.substr(text, 0, certain, unit="UTF8_CHAR") + kept
        tokens = vocabulary.encode_tf(part)
        has_space = tf.strings.length(kept) < tf.strings.length(window)
        enough = tf.logical_and(has_space, tf.size(tokens) >= limit)
        return tf.cond(enough, lambda: tokens, of_all)

    longer = tf.strings.length(text, unit="UTF8_CHAR") > certain + _WINDOW
    return tf.cond(longer, of_part, of_all)

"""Files with a run's answers to the examples of a task.

A file contains one line of JSON for each example, in the order in which the examples were answered.
The file grows batch by batch. If an evaluation is killed, the next one answers only the examples
that are still missing.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import re
from collections.abc import Callable, Sequence
from typing import Self

from etils import epath

from fire_lm.data.task_examples import Example
from fire_lm.errors import RunFailed, UserError
from fire_lm.generation.result_lines import whole_lines
from fire_lm.storage import read_bytes

# The maximum number of bytes in the name of a predictions file. It leaves space for the names of
# claims (`fire_lm.sweeps.claims`), which are longer.
_LONGEST_NAME = 200


@dataclasses.dataclass(frozen=True)
class Prediction:
    """The answer to an example, which is stored as a line in a file of predictions.

    Attributes:
      id: The id of the example.
      prediction: The text of the answer.
      answers: The reference answers.
      truncated: Whether the model read only a part of the input.
      input_tokens: The number of tokens in the complete input, without its end token.
      logprob: The natural logarithm of the answer's probability under the model.
      input_digest: A digest of what the model was given (`fire_lm.measures.answers.input_digest`),
        or "" in lines of versions that did not record it.
    """

    id: str
    prediction: str
    answers: tuple[str, ...]
    truncated: bool
    input_tokens: int
    logprob: float
    input_digest: str = ""

    @classmethod
    def from_answer(
        cls, example: Example, text: str, logprob: float, length: int, input_digest: str
    ) -> Self:
        """Return the prediction for an example of whose input the model read `length` tokens."""
        tokens, answers = example.input_length, example.answers
        return cls(example.id, text, answers, tokens > length - 1, tokens, logprob, input_digest)

    def line(self) -> bytes:
        return (json.dumps(dataclasses.asdict(self), ensure_ascii=False) + "\n").encode(
            errors="replace"
        )


def predictions_file(workdir: epath.Path, *parts: str | int) -> epath.Path:
    """Return the path of an evaluation's predictions, such as `predictions/TASK.SPLIT...jsonl`.

    The file name consists of `parts`, joined by dots. The end of a long name, such as one with many
    allowed answers, is replaced by a hash.
    """
    name = ".".join(re.sub(r"[^\w\-=+]+", "_", str(part)) or "plain" for part in parts)
    if len(name.encode()) > _LONGEST_NAME:
        digest = hashlib.sha256(repr(parts).encode()).hexdigest()[:8]
        name = f"{name.encode()[: _LONGEST_NAME - 9].decode(errors='ignore')}-{digest}"
    return workdir / "predictions" / f"{name}.jsonl"


def read_predictions(
    path: epath.Path, examples: Sequence[Example], input_digest: Callable[[Example], str]
) -> dict[str, Prediction]:
    """Return the predictions in a file, keyed by the id of the example.

    An incomplete last line is skipped. `input_digest` returns the digest of an example's input.
    Of a line without a digest, only the length of the input is compared.

    Raises:
      RunFailed: A line is damaged.
      UserError: The id, the reference answers, or the input's length or digest in a line do not
        match any of `examples`.
    """
    known = {example.id: example for example in examples}
    predictions: dict[str, Prediction] = {}
    lines = whole_lines(read_bytes(path) or b"").split(b"\n")[:-1]
    for number, line in enumerate(lines, 1):
        try:
            fields = json.loads(line)
            prediction = Prediction(**fields | {"answers": tuple(fields["answers"])})
        except (ValueError, TypeError, KeyError) as error:
            raise RunFailed(f"{path}, line {number}, is damaged: move the file away") from error
        name, example = prediction.id, known.get(prediction.id)
        recorded = prediction.answers, prediction.input_tokens
        if (
            example is None
            or recorded != (example.answers, example.input_length)
            or (prediction.input_digest and prediction.input_digest != input_digest(example))
        ):
            raise UserError(
                f"{path}, line {number}: the task has no example {name!r} with these answers and "
                f"this input of {prediction.input_tokens} tokens, so the file contains predictions "
                "for other data\nmove the file away, and the rows of the task in "
                "task_scores.csv, or set another name with --gin.evaluate.suite=NAME"
            )
        predictions[name] = prediction
    return predictions

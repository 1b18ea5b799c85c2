"""The model `fire_lm` of the harness, which scores and generates text with the model of a run."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

from lm_eval import utils
from lm_eval.api.instance import Instance
from lm_eval.api.model import TemplateLM
from lm_eval.models.utils import normalize_gen_kwargs

from fire_lm.console import Progress
from fire_lm.data import tokens as vocabulary
from fire_lm.errors import UserError
from fire_lm.lm_eval.engine import Leader

_POSITIVE = "[1-9][0-9]*"  # a positive integer
# The settings of sampling in addition to the temperature.
_SAMPLING = ("top_k", "top_p")


class FireLM(TemplateLM):  # type: ignore[misc]
    """A run as a model of the harness: `--model fire_lm --model_args run=RUN[@STEP],...`.

    Texts begin with token 0, as rows do in training, unless they are truncated.

    Args:
      run: `RUN` or `RUN@STEP`.
      max_length: The largest number of tokens in an input; by default, the training length. Longer
        requests are truncated from the left, as usual in the harness, and the number of truncated
        requests is printed.
      batch_size: The number of prompts that are continued together. The harness's default of 1 and
        `auto` both mean 16.
      device: Ignored; JAX selects the devices.
      max_batch_size: Ignored.
      more: Bindings `gin.NAME=VALUE` that change the model at evaluation.

    Raises:
      UserError: There is no such run, or an argument is not supported.
    """

    def __init__(
        self,
        run: str = "",
        max_length: int | None = None,
        batch_size: int | str = 1,
        device: str | None = None,
        max_batch_size: int | None = None,
        **more: Any,
    ):
        super().__init__()
        del device, max_batch_size  # options of the harness; JAX chooses the devices
        if not run:
            raise UserError("--model_args has no run: give run=RUN or run=RUN@STEP")
        if unknown := [name for name in more if not name.startswith("gin.")]:
            raise UserError(
                f"--model_args: {unknown[0]} is not an argument of fire_lm, which accepts run, "
                "max_length and gin.NAME=VALUE"
            )
        bindings = [f"{name.removeprefix('gin.')}={value}" for name, value in more.items()]
        self._leader = Leader(str(run), bindings)
        engine = self._leader.engine
        length = str(engine.train_length if max_length is None else max_length)
        if not re.fullmatch(_POSITIVE, length):
            raise UserError(f"max_length is {length}: it must be a positive integer")
        self.max_length = int(length)
        engine.check_length(self.max_length)
        text = str(batch_size).partition(":")[0]
        if not re.fullmatch(f"auto|{_POSITIVE}", text):
            raise UserError(f"--batch_size={batch_size} is neither a positive integer nor auto")
        self.batch_size = 16 if text in ("1", "auto") else int(text)
        print(f"fire_lm: {engine.name}, inputs of at most {self.max_length} tokens", flush=True)

    @property
    def max_gen_toks(self) -> int:
        return 256  # the harness's default

    @property
    def eot_token_id(self) -> int:
        return vocabulary.end_of_document(self._leader.engine.data)

    @property
    def prefix_token_id(self) -> int:
        return 0

    @property
    def tokenizer_name(self) -> str:
        return str(self._leader.engine.data.vocabulary).replace("/", "__")

    def tok_encode(
        self, string: str, add_special_tokens: bool | None = None, **more: Any
    ) -> list[int]:
        """Return the token ids of a text, preceded by 0 unless `add_special_tokens` is False."""
        ids: list[int] = vocabulary.encode(self._leader.engine.data, string).tolist()
        return ids if add_special_tokens is False else [self.prefix_token_id, *ids]

    def _loglikelihood_tokens(
        self,
        requests: Sequence[tuple[Any, list[int], list[int]]],
        disable_tqdm: bool = False,
        **more: Any,
    ) -> list[tuple[float, bool]]:
        rows, cut = [], 0
        for request, context, continuation in requests:
            if not continuation:
                raise UserError(
                    f"the continuation of the request {str(request)[:80]} has no tokens in the "
                    "run's vocabulary, so it cannot be scored"
                )
            if len(continuation) > self.max_length:
                raise UserError(
                    f"a continuation has {len(continuation)} tokens, more than max_length="
                    f"{self.max_length}: increase max_length in --model_args"
                )
            beyond = len(context) + len(continuation) - (self.max_length + 1)
            cut += beyond > 0
            rows.append((context[max(0, beyond) :], continuation))
        self._say_cut(cut, len(rows))
        scores: list[tuple[float, bool]] = [(0.0, False)] * len(rows)
        progress = Progress(len(rows), quiet=disable_tqdm)
        for count, (index, logprob, greedy) in enumerate(self._leader.scores(rows), 1):
            scores[index] = (logprob, greedy)
            if requests[index][0] is not None:
                self.cache_hook.add_partial("loglikelihood", requests[index][0], scores[index])
            progress.show(count, "log-likelihoods")
        progress.close()
        return scores

    def loglikelihood_rolling(
        self, requests: Sequence[Instance], disable_tqdm: bool = False
    ) -> list[float]:
        """Return the log-likelihoods of complete texts, scored in windows with disjoint targets."""
        windows: list[tuple[None, list[int], list[int]]] = []
        owners = []
        for number, request in enumerate(requests):
            ids = self.tok_encode(request.args[0], add_special_tokens=False)
            of_text = utils.get_rolling_token_windows(
                token_list=ids,
                prefix_token=self.prefix_token_id,
                max_seq_len=self.max_length,
                context_len=1,
            )
            for window in map(utils.make_disjoint_window, of_text):
                windows.append((None, *window))
                owners.append(number)
        totals = [0.0] * len(requests)
        scores = self._loglikelihood_tokens(windows, disable_tqdm)
        for owner, (logprob, _) in zip(owners, scores, strict=True):
            totals[owner] += logprob
        for request, total in zip(requests, totals, strict=True):
            self.cache_hook.add_partial("loglikelihood_rolling", request.args, total)
        return totals

    def generate_until(self, requests: Sequence[Instance], disable_tqdm: bool = False) -> list[str]:
        """Return generated texts, each up to a stop string, the end of the document or a limit.

        The limit is the request's number of new tokens, or else the harness's default.
        """
        texts = [""] * len(requests)
        progress, done, cut = Progress(len(requests), quiet=disable_tqdm), 0, 0
        for part, new_tokens, stop, sampling in self._alike(requests):
            room = self.max_length - new_tokens
            if room < 1:
                raise UserError(
                    f"max_length={self.max_length} leaves no room for a prompt in addition to "
                    f"{new_tokens} new tokens (max_gen_toks): increase max_length in --model_args"
                )
            prompts = [self.tok_encode(requests[index].args[0]) for index in part]
            cut += sum(len(ids) > room for ids in prompts)
            kept = [ids[-room:] for ids in prompts]
            of_part = self._leader.texts(
                kept, list(part), new_tokens, stop, sampling, self.max_length
            )
            for index, text in zip(part, of_part, strict=True):
                texts[index] = text
                self.cache_hook.add_partial("generate_until", requests[index].args, text)
            done += len(part)
            progress.show(done, "generated")
        progress.close()
        self._say_cut(cut, len(requests))
        return texts

    def _alike(
        self, requests: Sequence[Instance]
    ) -> Iterator[tuple[list[int], int, list[str], dict[str, Any]]]:
        """Yield batches of requests with identical settings, starting with the shortest prompts.

        Yields:
          The indices of the requests, the number of new tokens, the stop strings and the settings
          of sampling.
        """
        groups: dict[str, tuple[list[int], int, list[str], dict[str, Any]]] = {}
        for index, request in enumerate(requests):
            settings = dict(normalize_gen_kwargs(request.args[1], self.max_gen_toks))
            new_tokens, stop = settings.pop("max_gen_toks"), settings.pop("until")
            sampling = _sampling(settings)
            group = (new_tokens, stop, sampling)
            groups.setdefault(repr(group), ([], *group))[0].append(index)
        for indices, new_tokens, stop, sampling in groups.values():
            known = self._expressible(stop)
            indices.sort(key=lambda index: len(requests[index].args[0]))
            for start in range(0, len(indices), self.batch_size):
                yield indices[start : start + self.batch_size], new_tokens, known, sampling

    def _expressible(self, stop: Sequence[str]) -> list[str]:
        """Return the stop strings that the vocabulary can represent, and print the other ones."""
        data = self._leader.engine.data
        known = [text for text in stop if text and not vocabulary.never_decoded(data, text)]
        if lacking := [text for text in stop if text and text not in known]:
            print(
                f"ignoring the stop strings {lacking}, which the vocabulary cannot represent",
                flush=True,
            )
        return known

    def _say_cut(self, cut: int, total: int) -> None:
        if cut:
            print(
                f"truncated {cut} of {total} requests from the left to fit max_length="
                f"{self.max_length}",
                flush=True,
            )


def _sampling(requested: dict[str, Any]) -> dict[str, Any]:
    """Return the settings of `Sample` as a dict, which is empty for greedy decoding.

    The settings are removed from `requested`.

    Raises:
      UserError: `fire_lm.generation` does not support a setting.
    """
    temperature = float(requested.pop("temperature", 0.0))
    sampled = bool(requested.pop("do_sample", False)) and temperature > 0
    settings = {name: requested.pop(name) for name in _SAMPLING if name in requested}
    if requested:
        raise UserError(
            f"the generation setting '{next(iter(requested))}' is not supported: fire_lm supports "
            "'until', 'max_gen_toks', 'do_sample', 'temperature', 'top_k' and 'top_p'"
        )
    return {"temperature": temperature, **settings} if sampled else {}

"""The object that `fire_lm.open_run` returns, which represents a trained run."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from etils import epath

from fire_lm.checkpoints import available_steps, choose_step, restore_params, split_run
from fire_lm.data import Tokenized
from fire_lm.data import tokens as vocabulary
from fire_lm.errors import UserError
from fire_lm.experiment import Experiment
from fire_lm.generation import Greedy, Method
from fire_lm.generation.continuations import Continuation, Writer
from fire_lm.hardware.jax_settings import ignore_variables
from fire_lm.measures.scoring import abstract_params
from fire_lm.measures.text_probes import AttentionMap, attention_map, text_logits, text_losses
from fire_lm.models import Decoder, check_token_ids
from fire_lm.results import OwnRows, read_own
from fire_lm.results.metrics_log import logged_steps
from fire_lm.runs.inputs import note_changed_modules, with_located
from fire_lm.runs.saved import newest_config, no_run, saved_experiment, tokenized_of_run
from fire_lm.sharding import MeshShape, make_mesh
from fire_lm.storage import place, with_name
from fire_lm.storage.quiet import without_absl_warnings
from fire_lm.training import Pretraining
from fire_lm.training.lock import writer_of


@dataclasses.dataclass(frozen=True)
class Run:
    """A run in a local or gs:// directory, optionally with the step of one checkpoint.

    Results are read whenever they are requested, but the configuration is read only once.
    """

    workdir: epath.Path
    step: int | None = None

    @property
    def name(self) -> str:
        """The name of the run directory."""
        return self.workdir.name

    @functools.cached_property
    def experiment(self) -> Experiment:
        """The experiment that the configuration describes with which the run was last started."""
        return saved_experiment(self.workdir)

    @property
    def encoding(self) -> str:
        """The name that tables show for the positional encoding."""
        return self.experiment.label

    @property
    def settings(self) -> Pretraining:
        """The settings with which the run was trained.

        Paths in them are those at which the inputs of the run are found now.
        """
        return self._located.train

    @functools.cached_property
    def data(self) -> Tokenized:
        """The text or the text-to-text task on which the run was trained.

        Raises:
          UserError: The run was trained on a synthetic task, which has no text, or its vocabulary
            is missing or has changed.
        """
        return tokenized_of_run(self._located, self.workdir)

    @property
    def _located(self) -> Experiment:
        note_changed_modules(self.workdir)
        return with_located(self.experiment, self.workdir)

    @property
    def model(self) -> Decoder:
        """The model without its parameters."""
        return self.experiment.model

    @property
    def steps(self) -> list[int]:
        """The steps of the complete checkpoints in ascending order."""
        return available_steps(self.workdir)

    @property
    def writer(self) -> str:
        """The process that has locked the run directory, or "" if none has; see `writer_of`."""
        return writer_of(str(self.workdir))

    def restore(self) -> tuple[Decoder, Any]:
        """Return the model and its parameters, which are placed on this process's devices.

        The parameters come from the checkpoint of `step` or, if `step` is None, from the newest
        intact checkpoint. The checkpoint is verified first.

        Raises:
          UserError: The checkpoint does not exist.
          RunFailed: The checkpoint is damaged.
        """
        step = choose_step(self.workdir, self.step)
        like = abstract_params(self.model, make_mesh(MeshShape()))
        with without_absl_warnings():
            return self.model, restore_params(str(self.workdir), step, like)[0]

    def rows(self) -> OwnRows:
        """Return the results of sweeps, such as the losses by length and by position."""
        return read_own(self.workdir, self.encoding)

    def metrics(self) -> list[dict[str, Any]]:
        """Return the parsed lines of `metrics.jsonl`, one for each logged step."""
        return logged_steps(self.workdir)

    def encode(self, text: str) -> np.ndarray:
        """Return the ids of `text` in the run's vocabulary as int32 `[T]`."""
        return vocabulary.encode(self.data, text)

    def decode(self, tokens: np.ndarray) -> str:
        """Return the text that token ids represent."""
        return vocabulary.decode(self.data, tokens)

    def generate(
        self,
        prompt: str,
        *,
        new_tokens: int = 64,
        method: Method = Greedy(),  # noqa: B008 (frozen)
        stop: tuple[str, ...] = (),
        seed: int = 0,
    ) -> list[Continuation]:
        """Return the continuation of `prompt`, or one continuation for each sample or beam.

        The model's parameters are read at the first call and then kept in memory.

        Args:
          prompt: The text to continue.
          new_tokens: The maximum number of generated tokens.
          method: A `Greedy`, `Sample` or `Beam` from `fire_lm.generation`.
          stop: Strings that end a continuation without being part of it.
          seed: The seed for sampling.

        Raises:
          UserError: The prompt is empty, not valid UTF-8 or too long for the model, or the
            vocabulary cannot represent the prompt or a stop string.
          RunFailed: The checkpoint is damaged, or the model returns NaN.
        """
        model, params = self._restored
        writer = Writer(model, params, self.data, new_tokens, method, stop, seed)
        return writer.continue_prompts([writer.encode(prompt)], [0])[0]

    def logits(self, text: str | Sequence[int] | np.ndarray) -> np.ndarray:
        """Return the model's logits for a text, float32 `[T + 1, V]`.

        Row t contains the logits of the token that follows the first t tokens. The parameters are
        read, and a program is compiled, at the first call; texts whose length is in the same bucket
        (32, 64, 128, ... tokens) share a program.

        Args:
          text: The text, or its ids without the token 0, which the model reads first, as in
            training.

        Raises:
          UserError: The ids are not those of the model, the text is too long for the model, or the
            vocabulary cannot be read.
          RunFailed: The checkpoint is damaged.
        """
        model, params = self._restored
        return text_logits(model, params, self._ids(text))

    def losses(self, text: str | Sequence[int] | np.ndarray) -> np.ndarray:
        """Return the loss of each token of a text in nats, float32 `[T]`; see `logits`."""
        model, params = self._restored
        return text_losses(model, params, self._ids(text))

    def attention(self, text: str | Sequence[int] | np.ndarray, layer: int) -> AttentionMap:
        """Return the attention of one layer, zero-based, over the token 0 and a text.

        The result has `weights`, `products` (scaled q·k) and `bias`, each float32 `[N, T + 1,
        T + 1]` by head, query and key. A negative layer counts from the last.

        Raises:
          UserError, RunFailed: See `logits`, or the model has no such layer.
        """
        model, params = self._restored
        return attention_map(model, params, self._ids(text), layer)

    def _ids(self, text: str | Sequence[int] | np.ndarray) -> np.ndarray:
        """Return the ids of a text, or check ids, int32 `[T]`."""
        if isinstance(text, str):
            try:
                ids = self.encode(text)
            except UnicodeEncodeError:
                raise UserError(
                    "the text has half of a surrogate pair, which is not text"
                ) from None
        else:
            ids = np.asarray(text if len(text) else np.zeros(0, np.int32))
            if ids.ndim != 1 or not np.issubdtype(ids.dtype, np.integer):
                raise UserError("the text must be a str or a list of ids, which are whole numbers")
        check_token_ids(ids, self.model.vocab_size, "the text")
        return ids.astype(np.int32)

    @functools.cached_property
    def _restored(self) -> tuple[Decoder, Any]:
        return self.restore()

    def inputs(self, text: str) -> tuple[jax.Array, jax.Array]:
        """Return the inputs from which the model predicts the tokens of `text` and the next token.

        The inputs are tokens and positions, both int32 `[1, T + 1]`. The first token is 0, as in
        training, and the positions are the model's evaluation positions.

        Raises:
          UserError: A token of `text` has no row in the model's embedding.
        """
        tokens_T = np.concatenate([[0], self._ids(text)]).astype(np.int32)
        positions_BT = self.model.resampling.evaluation_positions(len(tokens_T))
        return jax.numpy.asarray(tokens_T)[None], positions_BT


def open_run(name: str | epath.Path) -> Run:
    """Open the run that a name of the form `RUN` or `RUN@STEP` denotes.

    Variables of the environment that would change results, such as JAX_ENABLE_X64, do not apply to
    this process afterwards, and a message says so.

    Raises:
      UserError: The name is malformed, or the directory contains no run.
      RunFailed: The directory cannot be listed.
    """
    ignore_variables()
    folder, step = split_run(str(name))
    workdir = with_name(place(folder))
    if newest_config(workdir) is None:
        raise no_run(folder)
    return Run(workdir, step)

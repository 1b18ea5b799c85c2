"""The export of a trained model as a Hugging Face folder, without transformers or torch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fire_lm.data import Tokenized
from fire_lm.data import tokens as vocabulary
from fire_lm.data.hub_vocabulary import EXPORTED
from fire_lm.generation.generate import check_context
from fire_lm.interop.model_files import has_own_code, new_folder, write_json, write_model
from fire_lm.interop.stock import Stock
from fire_lm.interop.tokenizer import tokenizer_files
from fire_lm.models import Decoder

_LONGER = 16  # the default length of an export, as a multiple of the training length


def export(
    model: Decoder,
    params: Any,
    data: Tokenized,
    folder: Path,
    about: str,
    context_length: int | None = None,
    trained_length: int = 0,
    configuration: str | None = None,
    mask_id: int | None = None,
) -> Stock:
    """Write a folder that transformers' auto classes and `AutoTokenizer` can open.

    The folder uses a stock class of the `transformers` library if one computes the same function.
    Otherwise the folder contains its own code and must be opened with `trust_remote_code=True`.

    Args:
      data: The data with the vocabulary from which the tokenizer is built.
      folder: The destination, which must be empty or absent. The folder appears only after all
        files have been written.
      about: Markdown for the model card that describes the training and the scores.
      context_length: The number of tokens to support. It affects the size of exported position
        tables that are not learned, and encodings that depend on the input length. The default is
        16 times the training length.
      trained_length: The training length of the run if it is longer than that of its encodings,
        which continue those of another run.
      configuration: The gin configuration of the exported run. Without a configuration, `fire-lm
        import` does not recognise the folder as an export.
      mask_id: The id of the token that hides tokens from a masked language model, if there is one.

    Returns:
      The exported configuration and arrays.

    Raises:
      UserError: The folder is not empty, the encoding does not support the length, or the model
        resamples positions in a way that depends on the length of the input.
    """
    trained = max(trained_length, model.encodings[0].train_length)
    length = context_length or _LONGER * trained
    if context_length is not None:
        check_context(model, length, length)
    end = vocabulary.end_of_document(data)
    files = tokenizer_files(data, mask_id)
    if model.causal:
        ids = {"bos_token_id": 0, "eos_token_id": end, "pad_token_id": 0}
        files["generation_config.json"] = {**ids, "suppress_tokens": [0]}
    with new_folder(folder) as unfinished:
        lines = {EXPORTED: configuration.removesuffix("\n").split("\n")} if configuration else {}
        form = write_model(model, params, length, end, unfinished, lines)
        for name, content in files.items():
            write_json(unfinished / name, content)
        (unfinished / "README.md").write_text(card(about, form))
    return form


def card(about: str, form: Stock) -> str:
    """Return the model card, which contains `about` and code that opens the folder."""
    more = ", trust_remote_code=True" if has_own_code(form) else ""
    architecture = form.config["architectures"][0]
    purpose = "MaskedLM" if architecture.endswith("MaskedLM") else "CausalLM"
    return f"""{about}

To load the model, whose class is {architecture}:

```python
from transformers import AutoModelFor{purpose}, AutoTokenizer

model = AutoModelFor{purpose}.from_pretrained("."{more})
tokenizer = AutoTokenizer.from_pretrained("."{more})
{_USE[purpose]}"""


_USE = {
    "CausalLM": """inputs = tokenizer("def main(", return_tensors="pt")
print(tokenizer.decode(model.generate(**inputs, max_new_tokens=64)[0], skip_special_tokens=True))
```

Token 0 begins every text (the tokenizer adds it) and is the padding token; it is never generated.
Always pass the attention mask to `generate`, as `**inputs` does: without it, transformers masks
every token 0, including the one that begins a text.
""",
    "MaskedLM": """inputs = tokenizer("def main(", return_tensors="pt")
inputs["input_ids"][0, 2] = tokenizer.mask_token_id  # hide a token
print(tokenizer.decode(model(**inputs).logits[0].argmax(-1), skip_special_tokens=True))
```

Token 0 is the padding token: pass the attention mask, as `**inputs` does, so that padding is not
read. Nothing is added to a text. Text that spells `<mask>` stays text: to read it as
the mask token, load the tokenizer with `split_special_tokens=False`.
""",
}

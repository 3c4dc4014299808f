"""The stage that takes over weights of ESM-2 and ESM C, and writes ours in the layout of ESM."""

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipeline.artifacts import INDEX, WEIGHTS, Result, Workspace, produce, read_keys
from pipeline.config import ConversionConfig
from pipeline.errors import UserError, reason
from pipeline.log import say
from pipeline.report.card import CARD, write_card

if TYPE_CHECKING:
    import torch

    from pipeline.model import StrandForMaskedLM

FILES = ["config.json", "*.safetensors", INDEX, "vocab.txt", "tokenizer.json", "tokenizer_config.json"]
MODEL_TYPES = {"esm2": "esm", "esmc": "esmc"}
TODAY = {"gamma": ".weight", "beta": ".bias"}  # of layer norms
CHAIN_BREAK = "|"  # what ESM C has in the place of ESM-2's <null_1>
NAMED = 5  # names listed in a message


def _task(config: ConversionConfig) -> tuple[str, Path]:
    """Return the layout that is read, or nothing where ours is, and the source.

    Raises:
        UserError: it is not said what is to become what.
    """
    origins: list[str] = getattr(config, "from")
    if len(origins) + len(config.to) != 1:
        raise UserError("from, to: give one of them: --from esm2, --from esmc or --to esm, then the source")
    if config.source is None:
        raise UserError("source: none given; name a checkpoint after the layout: --from esm2 FOLDER")
    return "".join(origins), config.source


def run(config: ConversionConfig) -> Result:
    """Write a strand checkpoint with their weights, or an ESM checkpoint with ours.

    Nothing but JSON and safetensors is read, and no code of the source is run. What pretrain writes and what
    is taken over are of one form: pretrain goes on from both, and the other stages take both.

    Raises:
        UserError: the source cannot be read, reads other tokens, or has a part that the other side lacks.
    """
    layout, source = _task(config)
    folder = _find(source) if layout else source

    def build(workspace: Workspace) -> None:
        from transformers.utils import logging

        logging.set_verbosity_error()
        logging.disable_progress_bar()
        _import(layout, folder, workspace) if layout else _export(folder, workspace)
        write_card(workspace, "convert", config)

    return produce("convert", config, {"source": folder}, build, volatile=(CARD,))


# -- from theirs to ours


def _find(source: Path) -> Path:
    """Return the folder of a checkpoint, given it or its name on the Hugging Face Hub.

    Raises:
        UserError: there is no such folder, and the Hub or its cache here has none of that name.
    """
    if source.is_dir():
        return source
    from huggingface_hub import snapshot_download

    try:
        return Path(snapshot_download(str(source), allow_patterns=FILES))
    except (OSError, ValueError) as error:
        reason = str(error).splitlines()[0]
        raise UserError(f"source: {source}: no such folder, nor to be had from the Hub: {reason}") from None


def _read_weights(folder: Path) -> "dict[str, torch.Tensor]":
    """Return the tensors of a folder, layer norms by their names of today.

    Raises:
        UserError: they are not there as safetensors, or one of several files is missing or broken, or a
            weight is not finite.
    """
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    from pipeline.training.weights import check_finite, weight_files

    tensors: dict[str, torch.Tensor] = {}
    for path in weight_files(folder, "source"):
        try:
            own = load_file(path)
        except SafetensorError as error:
            raise UserError(f"source: {path}: cannot be read as safetensors: {error}") from None
        for name, value in own.items():
            check_finite(name, value, path, "source")
        tensors |= own
    return {re.sub(r"\.(gamma|beta)$", lambda m: TODAY[m[1]], name): value for name, value in tensors.items()}


def _read_config(layout: str, folder: Path) -> Any:
    """Return their configuration.

    Raises:
        UserError: there is none, or it is that of another kind of model.
    """
    from huggingface_hub.errors import StrictDataclassError
    from transformers import EsmcConfig, EsmConfig

    path = folder / "config.json"
    if not path.is_file():
        raise UserError(f"source: {folder}: no config.json; pass a checkpoint in the Hugging Face layout")
    settings = read_keys(path)
    kind = settings.get("model_type")
    if kind != MODEL_TYPES[layout]:
        other = next((f"pass --from {key}" for key, value in MODEL_TYPES.items() if value == kind), "")
        raise UserError(f"source: {folder}: a {kind} model; {other or 'only esm and esmc can be taken over'}")
    try:
        return (EsmConfig if layout == "esm2" else EsmcConfig).from_dict(settings)
    except StrictDataclassError as error:
        raise UserError(f"source: {path}: {reason(error)}") from None


def _read_vocabulary(layout: str, folder: Path) -> list[str]:
    """Return the tokens of a checkpoint in the order of their ids.

    Raises:
        UserError: no file of the folder tells.
    """
    if (path := folder / "vocab.txt").is_file():
        return path.read_text().split()
    if (path := folder / "tokenizer.json").is_file():
        content = read_keys(path)
        ids = {token["content"]: token["id"] for token in content.get("added_tokens", ())}
        vocabulary = content.get("model", {}).get("vocab")
        if not isinstance(vocabulary, dict):
            raise UserError(f"source: {path}: no tokens by name in model.vocab; add ESM's vocab.txt")
        ids |= vocabulary
        return sorted(ids, key=lambda token: ids[token])
    if layout == "esmc":  # then the tokenizer is the one that is written in transformers' source
        from transformers.models.esmc.tokenization_esmc import SEQUENCE_VOCAB

        return SEQUENCE_VOCAB
    raise UserError(
        f"source: {folder}: no vocab.txt and no tokenizer.json, so its tokens are unknown; add one"
    )


def _check_vocabulary(layout: str, folder: Path) -> dict[str, str]:
    """Return their tokens that are called otherwise here.

    Raises:
        UserError: ids mean other letters than ours.
    """
    from pipeline.tokens.vocabulary import PROTEIN_TOKENS

    theirs = _read_vocabulary(layout, folder)
    if len(theirs) != len(PROTEIN_TOKENS):
        raise UserError(f"source: {folder}: {len(theirs)} tokens, not ESM-2's {len(PROTEIN_TOKENS)}")
    unlike = {a: b for a, b in zip(theirs, PROTEIN_TOKENS, strict=True) if a != b}
    strange = [token for token in unlike if not (layout == "esmc" and token == CHAIN_BREAK)]
    if strange:
        token = strange[0]
        raise UserError(f"source: {folder}: token {theirs.index(token)} is {token!r}, not {unlike[token]!r}")
    return unlike


def _import(layout: str, folder: Path, workspace: Workspace) -> None:
    from pipeline.training.foreign import IDLE, LAYOUTS, REGRESSION, strand_config, take

    theirs, renamed = _read_config(layout, folder), _check_vocabulary(layout, folder)
    tensors = _read_weights(folder)
    config = strand_config(theirs, tensors)
    model, rest = take(tensors, LAYOUTS[layout], config)
    unfitted = [rest.pop(f"{REGRESSION}.{kind}", None) for kind in ("weight", "bias")]
    strange = sorted(name for name in rest if not IDLE.fullmatch(name))
    if strange:
        named = ", ".join(strange[:NAMED])
        raise UserError(
            f"source: {folder}: no place for {len(strange)} tensors: {named}; merge adapters first"
        )
    workspace.counts |= {
        "parameters": model.num_parameters(),
        "tensors": len(tensors),
        "left_out": sorted(rest),
        "tokens_renamed": renamed,
        "contact_regression": config.contact_head,
    }
    if any(part is not None for part in unfitted):
        say("contact regression: theirs was never fitted (zero, or in part missing), so it is left out")
    _write_strand(model, workspace.path)
    _say_import(workspace.counts, theirs, config)


def _write_strand(model: "StrandForMaskedLM", folder: Path) -> None:
    from pipeline.tokens.vocabulary import find_tokenizer, load_tokenizer, save_tokenizer

    model.save_pretrained(folder)
    context = model.config.max_position_embeddings
    save_tokenizer(load_tokenizer(find_tokenizer("protein"), model_max_length=context), folder)


def _say_import(counts: dict[str, Any], theirs: Any, config: Any) -> None:
    say(f"{counts['parameters']:,} parameters, a context of {config.max_position_embeddings} tokens")
    for theirs_is, ours_is in counts["tokens_renamed"].items():
        say(f"token {theirs_is} is {ours_is} here: no letter is read as it")
    if counts["left_out"]:
        say(f"left out, as this network does not use them: {', '.join(counts['left_out'][:NAMED])}")
    if counts["contact_regression"]:
        say("contact regression: taken over; predict_contacts and strandlm contacts use it")
    if theirs.model_type == "esm" and theirs.tie_word_embeddings != config.tie_word_embeddings:
        say("the decoder is called tied, but differs from the token table: taken over as untied")
    if (config.rope_parameters or {})["rope_type"] == "longrope":
        say("rotary frequencies are stored rounded; they are taken over as they are")


# -- from ours to theirs


def _export(folder: Path, workspace: Workspace) -> None:
    from safetensors.torch import save_file

    from pipeline.training.foreign import esm_config, give

    model = _load(folder)
    config = esm_config(model.config)
    tensors = give(model)
    config.architectures, config.dtype = ["EsmForMaskedLM"], model.dtype
    _write_tokenizer(folder, workspace.path)
    config.save_pretrained(workspace.path)
    save_file(tensors, workspace.path / WEIGHTS, metadata={"format": "pt"})
    workspace.counts |= {
        "parameters": model.num_parameters(),
        "tensors": len(tensors),
        "contact_regression": model.config.contact_head,
    }
    say(f"{model.num_parameters():,} parameters; AutoModelForMaskedLM opens the folder without our code")
    if not model.config.contact_head:
        say("contact regression: there is none, so it is zero: predict_contacts gives 0.5 for every pair")


def _load(folder: Path) -> "StrandForMaskedLM":
    """Return a checkpoint of ours in the precision that it is stored in.

    Raises:
        UserError: it is none, or predicts no tokens.
    """
    from pipeline.model import StrandForMaskedLM
    from pipeline.training.weights import STRAND, load_weights

    model, missing = load_weights(StrandForMaskedLM, folder, kinds=STRAND, dtype="auto")
    if missing:
        raise UserError(f"source: {folder} is no masked language model; pass a folder written by pretrain")
    return model


def _write_tokenizer(folder: Path, target: Path) -> None:
    """Write the tokenizer of a checkpoint: of proteins ESM's own, of DNA ours, as far as it is JSON alone.

    ESM's own has no policy for letters: what it does not know, lower case among it, is ``<unk>``.

    Raises:
        UserError: the tokenizer is Python of ours.
    """
    from transformers import EsmTokenizer

    from pipeline.tokens.vocabulary import PROTEIN_TOKENS, load_tokenizer, save_as_json

    tokenizer = load_tokenizer(folder)
    if not tokenizer.is_fast:
        raise UserError("to: overlapping k-mers of this size need our tokenizer's source, which esm has not")
    ids = tokenizer.get_vocab()
    if sorted(ids, key=lambda token: ids[token]) != list(PROTEIN_TOKENS):
        save_as_json(tokenizer, target)
        return
    path = target / "vocab.txt"
    path.write_text("\n".join(PROTEIN_TOKENS))
    EsmTokenizer(str(path), model_max_length=tokenizer.model_max_length).save_pretrained(target)


if __name__ == "__main__":
    from pipeline.cli import main

    main(stage="convert")

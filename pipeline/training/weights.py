"""A checkpoint's files, held against each other before a network is made of them."""

from collections.abc import Container, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from huggingface_hub.errors import StrictDataclassError
from safetensors import SafetensorError, safe_open
from transformers import AutoModelForMaskedLM, PreTrainedConfig, PreTrainedModel
from transformers.utils import logging

import pipeline.model
from pipeline.artifacts import INDEX, WEIGHTS, read_keys, shard_names
from pipeline.errors import UserError, reason
from pipeline.log import say

CONFIG = "config.json"
KINDS = {"strand": pipeline.model.StrandConfig, "strand-factored": pipeline.model.FactoredConfig}
STRAND = ("strand",)  # what most stages read
ENCODER = "model."  # what the encoder's names begin with where a head is beside it
OLD_REGRESSION = "contact_regression.safetensors"  # convert kept ESM-2's contact regression there once
Shape = tuple[int, ...]


@dataclass(frozen=True)
class Stored:
    """A tensor as the header of its file has it."""

    file: Path
    shape: Shape


def read_config(folder: Path, wanted: str, kinds: Container[str] = KINDS) -> PreTrainedConfig:
    """Return the configuration of a checkpoint of ours; no code that lies beside it is run.

    Args:
        folder: the checkpoint's.
        wanted: the stage whose folder is to be passed where this is no checkpoint.
        kinds: the model types that will do.

    Raises:
        UserError: there is none, or it is of another kind or version, or there can be no such network.
    """
    path = folder / CONFIG
    if not path.is_file():
        raise UserError(f"checkpoint: {folder}: no {CONFIG}, so no checkpoint; pass {wanted}'s folder")
    kind = str(read_keys(path).get("model_type"))
    if kind not in kinds:
        raise UserError(f"checkpoint: {folder}: a {kind} model; pass one of the strand architecture")
    try:
        return KINDS[kind].from_pretrained(folder.absolute())
    except (StrictDataclassError, TypeError, ValueError) as error:
        raise UserError(f"checkpoint: {folder}: {reason(error)}") from None


def weight_files(folder: Path, key: str) -> list[Path]:
    """Return the safetensors files of a checkpoint; ``key`` is the setting that named the folder.

    Raises:
        UserError: there is none, or only a pickle, or one of those that the index names is not there.
    """
    if (folder / WEIGHTS).is_file():
        return [folder / WEIGHTS]
    if (folder / INDEX).is_file():
        paths = [folder / name for name in shard_names(folder / INDEX)]
        absent = [path.name for path in paths if not path.is_file()]
        if absent:
            raise UserError(f"{key}: {folder / INDEX}: names {absent[0]}, which is not there; copy all files")
        return paths
    pickled = next((path.name for path in sorted(folder.glob("*.bin"))), None)
    if pickled is None:
        raise UserError(f"{key}: {folder}: no {WEIGHTS}; pass a checkpoint in the Hugging Face layout")
    raise UserError(
        f"{key}: {folder}: {pickled} is a pickle, which can run code and is not read; where you trust it, "
        f"load it with transformers and save_pretrained it, which writes {WEIGHTS}"
    )


def _headers(folder: Path) -> dict[str, Stored]:
    """Return every stored tensor by name, without reading its numbers."""
    stored: dict[str, Stored] = {}
    for path in weight_files(folder, "checkpoint"):
        try:
            with safe_open(path, framework="pt") as file:
                names = list(file.keys())
                stored |= {name: Stored(path, tuple(file.get_slice(name).get_shape())) for name in names}
        except SafetensorError as error:
            raise UserError(f"checkpoint: {path}: not whole safetensors: {error}; copy it again") from None
    return stored


def _network(folder: Path, config: PreTrainedConfig) -> PreTrainedModel:
    """Return the network that a checkpoint was saved from, without memory for its weights."""
    names = config.architectures or []
    kind: Any = getattr(pipeline.model, names[0], None) if len(names) == 1 else None
    if getattr(kind, "config_class", None) is not type(config):
        raise UserError(
            f"checkpoint: {folder / CONFIG}: architectures: {names}: not one network of ours; write the name "
            "of the class whose weights these are, as save_pretrained does"
        )
    with torch.device("meta"):
        return kind(config)


def check_files(folder: Path, config: PreTrainedConfig) -> dict[str, Stored]:
    """Return the stored tensors of a checkpoint: those, and no others, that its own config.json tells of.

    Raises:
        UserError: names the first tensor that has another shape, or no place, or is not there.
    """
    stored, network = _headers(folder), _network(folder, config)
    expected = {name: tuple(value.shape) for name, value in network.state_dict().items()}
    for name, tensor in stored.items():
        if name not in expected:
            raise UserError(
                f"checkpoint: {tensor.file}: no place for tensor {name} in the network of {CONFIG} "
                f"({_layers(config)}); put the {CONFIG} there that was saved with these weights"
            )
        if tensor.shape != expected[name]:
            raise UserError(
                f"checkpoint: {tensor.file}: tensor {name} is {sizes(tensor.shape)}, but by {CONFIG} "
                f"{sizes(expected[name])}; put the {CONFIG} there that was saved with these weights"
            )
    tied = getattr(network, "all_tied_weights_keys", None) or {}
    absent = [name for name in expected if name not in stored and name not in tied]
    if absent:
        raise UserError(
            f"checkpoint: {folder}: tensor {absent[0]}, of which {CONFIG} tells, is in no file of weights; "
            "copy all files that were saved together"
        )
    return stored


def _layers(config: PreTrainedConfig) -> str:
    layers = getattr(config, "num_hidden_layers", None)
    kind = (config.architectures or [""])[0]
    return kind if layers is None else f"{kind} with num_hidden_layers {layers}"


def sizes(shape: Shape) -> str:
    """Return a shape in words."""
    return " x ".join(map(str, shape)) or "one number"


def check_finite(name: str, value: torch.Tensor, file: Path, key: str) -> None:
    """Refuse a tensor of ``file`` with NaN or infinity in it; ``key`` is the setting that named the folder.

    Raises:
        UserError: names it, and how many of its numbers are none.
    """
    wrong = value.numel() - int(torch.isfinite(value).sum())
    if wrong:
        raise UserError(
            f"{key}: {file}: tensor {name}: {wrong} of {value.numel()} weights are NaN or infinite: the file "
            "is damaged or its training diverged; pass an earlier checkpoint"
        )


def _check_numbers(model: PreTrainedModel, stored: Mapping[str, Stored]) -> None:
    """Refuse weights of a network that are no numbers; those that it has no use for are not looked at."""
    files = {name.removeprefix(ENCODER): tensor.file for name, tensor in stored.items()}
    for name, value in model.state_dict().items():
        if file := files.get(name.removeprefix(ENCODER)):
            check_finite(name, value, file, "checkpoint")


def load_weights(
    kind: Any, folder: Path, wanted: str = "pretrain", kinds: Container[str] = KINDS, **changed: Any
):
    """Return a network with a checkpoint's weights, and the names of those weights that are new.

    Args:
        kind: the Auto class, or class, that loads it.
        folder: the checkpoint's.
        wanted: the stage whose folder is to be passed where this is no checkpoint.
        kinds: the model types that will do.
        **changed: passed to ``from_pretrained``; ``config`` there is used instead of the checkpoint's own.

    Raises:
        UserError: the files do not go together, or a weight is not finite.
    """
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    stored = check_files(folder, read_config(folder, wanted, kinds))
    if (folder / OLD_REGRESSION).is_file():
        say(f"{folder / OLD_REGRESSION}: not read: convert ESM-2 anew to have its contact regression")
    model, report = kind.from_pretrained(
        folder.absolute(),
        output_loading_info=True,
        local_files_only=True,
        trust_remote_code=False,
        **changed,
    )
    _check_numbers(model, stored)
    return model, report["missing_keys"]


def load_protein_model(checkpoint: Path, kinds: Container[str] = KINDS):
    """Return a network that predicts residues, in float32 and evaluation mode.

    Args:
        checkpoint: its folder.
        kinds: the model types that will do.

    Raises:
        UserError: see `load_weights`; or it predicts no tokens, or reads something else than proteins.
    """
    model, missing = load_weights(AutoModelForMaskedLM, checkpoint, kinds=kinds, dtype=torch.float32)
    if (alphabet := getattr(model.config, "alphabet", "protein")) != "protein":
        raise UserError(f"checkpoint: {checkpoint}: a model of {alphabet}; contacts need a protein model")
    if missing:
        raise UserError(f"checkpoint: {checkpoint} predicts no tokens; pass a folder written by pretrain")
    return model.eval()

"""The stage that trains a language model on tokens (``accelerate launch -m pipeline.pretrain``)."""

import shutil
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipeline.artifacts import Result, Workspace, hash_input, produce, read_manifest
from pipeline.config import PretrainConfig
from pipeline.errors import UserError
from pipeline.log import say

if TYPE_CHECKING:
    from pipeline.tokens.kmers import Codec
    from pipeline.tokens.store import TokenSplit
    from pipeline.training.checkpoints import Progress
    from pipeline.training.scores import Scores

VOLATILE = ("metrics.jsonl", "tensorboard", "checkpoints")


def make_model(config: PretrainConfig, codec: "Codec", columns: int):
    """Return the untrained network of a run; ``columns`` is the length of an aligned family's rows.

    The weights are a function of the seed.
    """
    from pipeline.model import FactoredConfig, FactoredForMaskedLM, StrandConfig, StrandForMaskedLM
    from pipeline.tokens.vocabulary import RESIDUES
    from pipeline.training.initialise import fresh

    shape = config.model
    common: dict[str, Any] = {
        "vocab_size": len(codec.vocabulary),
        "hidden_size": shape.hidden_size,
        "num_attention_heads": shape.num_attention_heads,
        "pad_token_id": codec.special("pad"),
    }
    if shape.architecture == "factored":
        residues = [codec.vocabulary[letter] for letter in RESIDUES]
        factored = FactoredConfig(**common, num_columns=columns, residue_token_ids=residues)
        return fresh(FactoredForMaskedLM, factored, codec, config.seed)
    strand = StrandConfig(
        **common,
        num_hidden_layers=shape.num_hidden_layers,
        intermediate_size=shape.intermediate_size or -(-shape.hidden_size * 8 // 3) // 8 * 8,
        norm=shape.norm,
        activation=shape.activation,
        use_bias=shape.use_bias,
        qk_norm=shape.qk_norm,
        tie_word_embeddings=shape.tie_word_embeddings,
        rope_parameters={"rope_type": "default", "rope_theta": shape.rope_theta},
        max_position_embeddings=context_tokens(config.window, codec),
        alphabet=codec.alphabet,
        k=codec.k,
        overlapping=codec.overlapping,
    )
    return fresh(StrandForMaskedLM, strand, codec, config.seed)


def context_tokens(window: int, codec: "Codec") -> int:
    """Return the tokens that a window of real letters needs at most, specials included."""
    return codec.most_tokens(window) + 2


def _check(config: PretrainConfig) -> None:
    """Refuse tokens and settings that do not go together, before anything is written."""
    from pipeline.tokens.masking import check_masking
    from pipeline.tokens.store import load_tokens

    splits, codec = load_tokens(config.data)
    if "train" not in splits:
        raise UserError(f"data: {config.data} has no train split; prepare it with one")
    _columns(splits, config, codec.alphabet)
    check_masking(config.masking, codec)
    if config.masking.soft_mask_weight < 1 and splits["train"].soft_mask is None:
        raise UserError(
            f"masking.soft_mask_weight: {config.data} knows of no soft mask; prepare it with --letters.case "
            "soft-mask, or leave the weight at 1"
        )


def _columns(splits: dict[str, "TokenSplit"], config: PretrainConfig, alphabet: str) -> int:
    """Return the length of the first row, which is every row's where the architecture asks for that."""
    lengths = splits["train"].lengths
    if config.model.architecture == "factored" and alphabet != "protein":
        raise UserError(
            f"model.architecture: factored is for one protein family, but {config.data} holds {alphabet}; "
            "use strand"
        )
    if config.model.architecture == "factored" and lengths.min() != lengths.max():
        raise UserError(
            f"model.architecture: factored needs rows of one length, but {config.data} has rows of "
            f"{lengths.min()} to {lengths.max()}; prepare an alignment with --aligned true"
        )
    return int(lengths[0])


def _make_objective(config: PretrainConfig, split: "TokenSplit", codec: "Codec"):
    from pipeline.training.objective import AlignedObjective, MaskedObjective

    if config.model.architecture == "strand":
        return MaskedObjective(split, codec, config.masking, config.seed)
    import numpy as np

    from pipeline.attention.contacts import sequence_weights

    rows = np.stack([codec.codes_of_track(split.row(record)) for record in range(len(split))])
    return AlignedObjective(split, codec, sequence_weights(rows))


def _spans(split: "TokenSplit", windows) -> list[tuple[str, int, int]]:
    """Return which letters of which records windows show, counted from 0, removed gaps left out."""
    begins = [(split.ids[w.record], int(split.starts[w.record]) + w.start, w.length) for w in windows]
    return [(name, begin, begin + length) for name, begin, length in begins]


def _train(config: PretrainConfig, folder: Path, counts: dict[str, Any], accelerator) -> None:
    import transformers

    from pipeline.tokens.store import load_tokens
    from pipeline.training.checkpoints import enough_disk
    from pipeline.training.loop import Run, train
    from pipeline.training.plan import steps
    from pipeline.training.resume import settings_of
    from pipeline.training.scores import Scores

    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    splits, codec = load_tokens(config.data)
    columns = _columns(splits, config, codec.alphabet)
    split = splits["train"]
    window = columns if config.model.architecture == "factored" else config.window
    model = make_model(config, codec, columns)
    counts["parameters"] = sum(p.numel() for p in model.parameters())
    if accelerator.is_main_process:
        say(
            f"{counts['parameters']:,} parameters, {int(split.lengths.sum()):,} letters of training text, "
            f"{config.steps} steps of {config.tokens_per_step:,} letters, {accelerator.num_processes} "
            f"process(es) on {accelerator.device.type}"
        )
    strands = codec.alphabet == "dna"
    plan = steps(split.lengths, window, config.tokens_per_step, strands, config.seed)
    objective = _make_objective(config, split, codec)
    scores = Scores(config, splits, codec)
    spans = partial(_spans, split)
    settings = settings_of(config, hash_input(config.data))
    progress = train(Run(accelerator, model, objective, plan, scores.during, folder, spans, settings), config)
    if accelerator.is_main_process:
        _say_shares(objective)
        counts |= {"skipped_steps": progress.skipped, "changed_on_resume": progress.changes}
        with enough_disk(folder):
            counts["weights_of_step"] = _take_best(model, folder, progress, config)
            _export(config, folder, model, codec, scores, window)


def _take_best(model, folder: Path, progress: "Progress", config: PretrainConfig) -> int:
    """Put the weights that are to be the result into the model; return the step they are of."""
    from pipeline.training.checkpoints import damage, load_weights, name_of

    step, best = progress.step, progress.best_step
    if progress.best is None:
        return step
    if config.keep_best and best != step:
        path = folder / "checkpoints" / name_of(best)
        if problem := damage(path):
            say(f"{path}: {problem}; the result is step {step}, not this one, which validated best")
            return step
        load_weights(path, model)
        step = best
    say(f"the result is step {step} of {progress.step}; step {best} validated best ({progress.best:.4f})")
    return step


def _export(
    config: PretrainConfig, folder: Path, model, codec: "Codec", scores: "Scores", window: int
) -> None:
    """Score the model on test text; write it, its tokenizer and the scores."""
    from pipeline.artifacts import write_json
    from pipeline.tokens.vocabulary import load_tokenizer, save_tokenizer

    metrics = {}
    if config.model.architecture == "strand":
        metrics = scores.final(model, make_model(config, codec, 0), config.count_model)
    for name, score in metrics.items():
        bits = [f"{key} {value:.4f}" for key, value in score.items() if isinstance(value, float)]
        say(", ".join(bits) + f" ({name}, {score['hidden_letters']} letters of the test split)")
    model.save_pretrained(folder)
    tokenizer = load_tokenizer(config.data / "tokenizer")
    tokenizer.model_max_length = context_tokens(window, codec)
    save_tokenizer(tokenizer, folder)
    write_json(folder / "metrics.json", metrics)


def _say_shares(objective) -> None:
    """Say what became of the letters that this process has masked since it was started."""
    from pipeline.training.objective import MaskedObjective

    if isinstance(objective, MaskedObjective) and objective.letters:
        share = objective.shares()
        say(
            f"{share['hidden']:.1%} of letters hidden; of their runs {share['masked']:.1%} masked, "
            f"{share['replaced']:.1%} replaced, {share['kept']:.1%} kept"
        )


def _precision(config: PretrainConfig, on_cpu: bool) -> str:
    """Return the precision to train in: half precision overflows without a scaled loss, so it is not used."""
    if config.precision != "fp16":
        return config.precision
    if not on_cpu:
        raise UserError("precision: fp16 is not supported; use bf16, which has float32's range")
    say("precision: fp16 is for GPUs; training in float32 here")
    return "no"


def _accelerator(config: PretrainConfig):
    import torch
    from accelerate import Accelerator
    from accelerate.utils import DistributedType

    on_cpu = not (torch.cuda.is_available() or torch.backends.mps.is_available())
    accelerator = Accelerator(cpu=on_cpu, mixed_precision=_precision(config, on_cpu))
    if accelerator.distributed_type in (DistributedType.FSDP, DistributedType.DEEPSPEED):
        raise UserError(
            f"accelerate launch: {accelerator.distributed_type.value} divides the model among processes, and "
            "checkpoints here need it whole; use configs/accelerate/ddp.yaml"
        )
    return accelerator


def _find_earlier_work(config: PretrainConfig, folder: Path) -> None:
    """Clear the folder where the run is to start over; else see whether it lengthens a finished one."""
    from pipeline.training.resume import settings_of, take_over

    if config.resume == "never":
        for path in folder.glob("[!.]*"):
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    elif config.resume == "auto" and not any(folder.glob("checkpoints/step-*")):
        take_over(config.output, folder, config, settings_of(config, hash_input(config.data)))


def run(config: PretrainConfig) -> Result:
    """Train; write a Hugging Face checkpoint with metrics.json beside the weights.

    With several processes the first one owns the folder; the others are told whether there is work to do.
    """
    from accelerate.utils import broadcast_object_list

    if read_manifest(config.data)["stage"] != "tokenize":
        raise UserError(f"data: {config.data} was not written by tokenize; pass a token folder")
    _check(config)
    accelerator = _accelerator(config)

    def build(workspace: Workspace) -> None:
        _find_earlier_work(config, workspace.path)
        broadcast_object_list([str(workspace.path)])
        _train(config, workspace.path, workspace.counts, accelerator)

    if accelerator.is_main_process:
        result = produce("pretrain", config, {"data": config.data}, build, volatile=VOLATILE, resumable=True)
        if result.up_to_date:
            broadcast_object_list([None])
        accelerator.wait_for_everyone()
        return result
    folder = broadcast_object_list([None])[0]
    if folder is not None:
        _train(config, Path(folder), {}, accelerator)
    accelerator.wait_for_everyone()
    return Result(config.output, read_manifest(config.output), up_to_date=folder is None)


if __name__ == "__main__":
    from pipeline.cli import main

    main(stage="pretrain")

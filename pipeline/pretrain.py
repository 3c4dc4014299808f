"""The stage that trains a language model on tokens (``accelerate launch -m pipeline.pretrain``)."""

import shutil
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from pipeline.artifacts import Result, Workspace, hash_input, produce, read_manifest
from pipeline.config import PretrainConfig
from pipeline.errors import UserError
from pipeline.log import say
from pipeline.report.card import CARD, write_card

if TYPE_CHECKING:
    import numpy as np

    from pipeline.tokens.kmers import Codec
    from pipeline.tokens.store import Splits, TokenSplit
    from pipeline.training.checkpoints import Progress
    from pipeline.training.estimate import Plan
    from pipeline.training.scores import Scores

VOLATILE = ("metrics.jsonl", "tensorboard", "checkpoints", CARD)


class Text(NamedTuple):
    """What a run reads.

    ``sets`` are the splits of each data set, ``shares`` how much of what is read comes from each, ``columns``
    the length of an aligned family's rows, or 0.
    """

    sets: dict[str, "Splits"]
    codec: "Codec"
    shares: dict[str, float]
    columns: int

    @property
    def lengths(self) -> list["np.ndarray"]:
        """Letters of each training record of each data set."""
        return [splits["train"].lengths for splits in self.sets.values()]


def _read(config: PretrainConfig) -> Text:
    """Open the tokens.

    Raises:
        UserError: they do not go together with each other or with the settings.
    """
    from pipeline.tokens.masking import check_masking
    from pipeline.tokens.store import load_token_sets

    sets, codec = load_token_sets(config.data)
    for folder, splits in zip(config.data, sets.values(), strict=True):
        if "train" not in splits:
            raise UserError(f"data: {folder} has no train split; prepare it with one")
        if config.masking.soft_mask_weight < 1 and splits["train"].soft_mask is None:
            raise UserError(
                f"masking.soft_mask_weight: {folder} knows of no soft mask; prepare it with --letters.case "
                "soft-mask, or leave the weight at 1"
            )
    check_masking(config.masking, codec)
    columns = _columns(sets, config, codec.alphabet) if config.model.architecture == "factored" else 0
    return Text(sets, codec, _shares(config, sets), columns)


def _columns(sets: dict[str, "Splits"], config: PretrainConfig, alphabet: str) -> int:
    """Return the length of every row of an aligned family."""
    if alphabet != "protein":
        raise UserError(
            f"model.architecture: factored is for one protein family; the data are {alphabet}: use strand"
        )
    if config.optimizer.method == "muon":
        raise UserError("optimizer.method: muon is for the matrices of layers; factored has none: use adamw")
    lengths = [length for splits in sets.values() for length in splits["train"].lengths.tolist()]
    if min(lengths) != max(lengths):
        raise UserError(
            f"model.architecture: factored needs rows of one length, but {', '.join(map(str, config.data))} "
            f"has rows of {min(lengths)} to {max(lengths)}; prepare an alignment with --aligned true"
        )
    return lengths[0]


def _shares(config: PretrainConfig, sets: dict[str, "Splits"]) -> dict[str, float]:
    """Return which share of what is read comes from each data set."""
    from pipeline.training.plan import shares_of

    weights = config.mixture.weights or [int(splits["train"].lengths.sum()) for splits in sets.values()]
    if len(weights) != len(sets):
        raise UserError(f"mixture.weights: {len(weights)} numbers for {len(sets)} data sets; give one each")
    return dict(zip(sets, shares_of(weights, config.mixture.temperature), strict=True))


def _work(config: PretrainConfig, model, text: Text, processes: int) -> "Plan":
    """Return what the run will take."""
    from pipeline.training.estimate import estimate
    from pipeline.training.plan import epoch_size

    window = text.columns or config.window
    sizes = [epoch_size(lengths, window) for lengths in text.lengths]
    letters, windows = (sum(size) for size in zip(*sizes, strict=True))
    mean = round(letters / windows)
    tokens_per_letter = 1.0 if text.columns else (text.codec.most_tokens(mean) + 2) / mean
    return estimate(model, config, letters, windows, tokens_per_letter, processes)


def _say_plan(config: PretrainConfig, text: Text) -> None:
    """Print the plan of a run that is not to be started."""
    from pipeline.training.network import make_config, outline

    model = outline(make_config(config, text.codec, text.columns))
    for line in _work(config, model, text, 1).lines():
        say(line)


def _make_objective(config: PretrainConfig, split: "TokenSplit", codec: "Codec", packed: bool):
    from pipeline.training.objective import AlignedObjective, MaskedObjective

    if config.model.architecture == "strand":
        return MaskedObjective(split, codec, config.masking, config.seed, packed)
    import numpy as np

    from pipeline.attention.contacts import sequence_weights

    rows = np.stack([codec.codes_of_track(split.row(record)) for record in range(len(split))])
    return AlignedObjective(split, codec, sequence_weights(rows))


def _spans(split: "TokenSplit", windows) -> list[tuple[str, int, int]]:
    """Return which letters of which records windows show, counted from 0, removed gaps left out."""
    begins = [(split.ids[w.record], int(split.starts[w.record]) + w.start, w.length) for w in windows]
    return [(name, begin, begin + length) for name, begin, length in begins]


def _train(config: PretrainConfig, text: Text, folder: Path, counts: dict[str, Any], accelerator) -> None:
    import transformers

    from pipeline.tokens.store import joined
    from pipeline.training.checkpoints import enough_disk
    from pipeline.training.loop import Run, train
    from pipeline.training.network import make_config, make_model
    from pipeline.training.objective import AlignedObjective
    from pipeline.training.plan import steps
    from pipeline.training.scores import Scores
    from pipeline.training.sharding import whole_model

    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    window = text.columns or config.window
    model = make_model(config, make_config(config, text.codec, text.columns), text.codec)
    packed = _prepare_network(config, model, accelerator)
    counts["parameters"] = sum(p.numel() for p in model.parameters())
    if len(text.shares) > 1:
        counts["shares"] = text.shares
    watching = _watching(config, model, text, accelerator)
    reading = {"shares": list(text.shares.values()), "warmup": config.window_warmup}
    strands = text.codec.alphabet == "dna"
    plan = steps(text.lengths, window, config.tokens_per_step, strands, config.seed, **reading)
    split = joined([splits["train"] for splits in text.sets.values()])
    objective = _make_objective(config, split, text.codec, packed)
    if isinstance(objective, AlignedObjective):
        model.config.coupling_decay = config.model.coupling_decay * (window - 1) / objective.weight
    scores = {name: Scores(config, splits, text.codec) for name, splits in text.sets.items()}
    validate, spans = partial(_validate, scores, text.shares), partial(_spans, split)
    settings = _settings(config)
    run = Run(accelerator, model, objective, plan, validate, folder, spans, settings, watching)
    progress = train(run, config)
    trained = whole_model(model, accelerator.is_main_process)
    if trained is not None and accelerator.is_main_process:
        model = trained.to(accelerator.device)
        _say_shares(objective)
        counts |= {"skipped_steps": progress.skipped, "changed_on_resume": progress.changes}
        with enough_disk(folder):
            counts["weights_of_step"] = step = _take_best(model, folder, progress, config)
            counts["letters_seen"] = _letters_seen(folder, progress, step)
            _export(config, folder, model, text.codec, scores, window)


def _watching(config: PretrainConfig, model, text: Text, accelerator) -> dict[str, Any]:
    """Say the plan; return what the tracker is to know of it."""
    from pipeline.training.peaks import peak_of
    from pipeline.training.tracking import FORETELL, start_trackers

    work = _work(config, model, text, accelerator.num_processes)
    known = {
        "tokens_per_letter": work.tokens_per_letter,
        "flops_per_token": work.flops_per_token,
        "others": start_trackers(accelerator, config),
    }
    if not accelerator.is_main_process:
        return known
    for line in work.lines():
        say(line)
    where = f"{accelerator.num_processes} process(es) on {accelerator.device.type}"
    if config.steps < FORETELL:
        say(where)
        return known
    peak, source = peak_of(accelerator.device, accelerator.mixed_precision)
    say(f"{where}, {source}")
    return known | {"peak": peak * accelerator.num_processes}


def _prepare_network(config: PretrainConfig, model, accelerator) -> bool:
    """Choose the attention kernel and how the network is computed; return whether batches are packed."""
    import torch

    from pipeline.model.attention_strand import CPU, VARLEN, fastest_attention

    if config.compile:
        model.compile(dynamic=True)
    if config.model.architecture == "factored":
        return False
    if config.gradient_checkpointing:
        model.activation_checkpointing_enable()
    dtype = torch.bfloat16 if accelerator.mixed_precision == "bf16" else torch.float32
    kernel = fastest_attention(accelerator.device, dtype, training=True)
    model.set_attn_implementation(kernel)
    return kernel in (CPU, VARLEN)


def _validate(scores: dict[str, "Scores"], shares: dict[str, float], model) -> dict[str, float]:
    """Return the validation bits: of several data sets first their mean, by the shares they are read in."""
    each = {name: one.during(model) for name, one in scores.items()}
    if len(each) == 1:
        return each.popitem()[1]
    total = sum(shares[name] for name, numbers in each.items() if numbers)
    mean: dict[str, float] = {}
    for name, numbers in each.items():
        for metric, value in numbers.items():
            mean[metric] = mean.get(metric, 0.0) + value * shares[name] / total
    return mean | {f"{metric}:{name}": v for name, numbers in each.items() for metric, v in numbers.items()}


def _take_best(model, folder: Path, progress: "Progress", config: PretrainConfig) -> int:
    """Put the weights that are to be the result into the model; return the step they are of."""
    from pipeline.training.checkpoints import damage, name_of, restore_weights

    step, best = progress.step, progress.best_step
    if progress.best is None:
        return step
    if config.keep_best and best != step:
        path = folder / "checkpoints" / name_of(best)
        if problem := damage(path):
            say(f"{path}: {problem}; the result is step {step}, not this one, which validated best")
            return step
        restore_weights(path, model)
        step = best
    say(f"the result is step {step} of {progress.step}; step {best} validated best ({progress.best:.4f})")
    return step


def _letters_seen(folder: Path, progress: "Progress", step: int) -> int:
    """Return the letters that the run had read at a step: its last, or one that it kept."""
    from pipeline.training.checkpoints import name_of, read

    if step == progress.step:
        return progress.letters
    return read(folder / "checkpoints" / name_of(step)).progress.letters


def _export(
    config: PretrainConfig, folder: Path, model, codec: "Codec", scores: dict[str, "Scores"], window: int
) -> None:
    """Score the model on the test text of each data set; write it, its tokenizer and the scores."""
    from pipeline.artifacts import write_json
    from pipeline.tokens.vocabulary import load_tokenizer, save_tokenizer
    from pipeline.training.network import context_tokens, untrained
    from pipeline.training.scores import write_windows

    metrics = {}
    if config.model.architecture == "strand":
        for name, one in scores.items():
            final = one.final(model, untrained(model.config, codec, config.seed), config.count_model)
            metrics |= final if len(scores) == 1 else {f"{key}:{name}": value for key, value in final.items()}
    for name, score in metrics.items():
        bits = [f"{key} {value:.4f}" for key, value in score.items() if isinstance(value, float)]
        say(", ".join(bits) + f" ({name}, {score['hidden_letters']} letters of the test split)")
    model.save_pretrained(folder)
    tokenizer = load_tokenizer(config.data[0] / "tokenizer")
    tokenizer.model_max_length = context_tokens(window, codec)
    save_tokenizer(tokenizer, folder)
    write_json(folder / "metrics.json", metrics)
    write_windows(folder, scores)


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
    import torch

    if config.precision == "bf16" and on_cpu and not torch.ops.mkldnn._is_mkldnn_bf16_supported():
        say("precision: this processor has no units for bf16, which is then slower than float32 (no)")
    if config.precision != "fp16":
        return config.precision
    if not on_cpu:
        raise UserError("precision: fp16 is not supported; use bf16, which has float32's range")
    say("precision: fp16 is for GPUs; training in float32 here")
    return "no"


def _accelerator(config: PretrainConfig):
    import torch
    from accelerate import Accelerator

    from pipeline.training.sharding import check_launch, check_sharding

    check_launch(config)
    on_cpu = not (torch.cuda.is_available() or torch.backends.mps.is_available())
    accelerator = Accelerator(
        cpu=on_cpu,
        mixed_precision=_precision(config, on_cpu),
        log_with=[*config.trackers] or None,
        project_dir=config.output.parent,
    )
    check_sharding(accelerator)
    return accelerator


def _find_earlier_work(config: PretrainConfig, folder: Path) -> None:
    """Clear the folder where the run is to start over; else see whether it lengthens a finished one."""
    from pipeline.training.resume import take_over

    if config.resume == "never":
        for path in folder.glob("[!.]*"):
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    elif config.resume == "auto" and not any(folder.glob("checkpoints/step-*")):
        take_over(config.output, folder, config, _settings(config))


def _inputs(config: PretrainConfig) -> dict[str, Path]:
    """Return the folders that a run reads, by what they are called in the manifest."""
    several = {f"data {i}": folder for i, folder in enumerate(config.data, 1)}
    inputs = {"data": config.data[0]} if len(several) == 1 else several
    return inputs | ({"start_from": config.start_from} if config.start_from else {})


def _settings(config: PretrainConfig) -> dict[str, Any]:
    from pipeline.training.resume import settings_of

    return settings_of(config, {name: hash_input(path) for name, path in _inputs(config).items()})


def run(config: PretrainConfig) -> Result:
    """Train; write a Hugging Face checkpoint with metrics.json beside the weights.

    With several processes the first one owns the folder; the others are told whether there is work to do. A
    dry run says what it would be, and writes nothing.
    """
    from accelerate.utils import broadcast_object_list

    from pipeline.training.network import make_config
    from pipeline.training.tracking import check_trackers

    text = _read(config)
    make_config(config, text.codec, text.columns)
    check_trackers(config.trackers)
    if config.dry_run:
        _say_plan(config, text)
        return Result(config.output, {}, up_to_date=True)
    accelerator = _accelerator(config)

    def build(workspace: Workspace) -> None:
        _find_earlier_work(config, workspace.path)
        broadcast_object_list([str(workspace.path)])
        _train(config, text, workspace.path, workspace.counts, accelerator)
        write_card(workspace, "pretrain", config)

    if accelerator.is_main_process:
        result = produce("pretrain", config, _inputs(config), build, volatile=VOLATILE, resumable=True)
        if result.up_to_date:
            broadcast_object_list([None])
        accelerator.wait_for_everyone()
        return result
    folder = broadcast_object_list([None])[0]
    if folder is not None:
        _train(config, text, Path(folder), {}, accelerator)
    accelerator.wait_for_everyone()
    return Result(config.output, read_manifest(config.output), up_to_date=folder is None)


if __name__ == "__main__":
    from pipeline.cli import main

    main(stage="pretrain")

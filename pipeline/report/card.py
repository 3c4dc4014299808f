"""The model card of a checkpoint: README.md, a function of its configuration, manifests and scores.

Folders and files appear in it by name and content hash, never by their path.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pipeline import __version__
from pipeline.artifacts import NOT_HASHED, Workspace, read_manifest
from pipeline.config import StageConfig
from pipeline.errors import UserError
from pipeline.report.markup import shown, words
from pipeline.report.texts import CONTROLS, MEANINGS, control_name, is_number, kind_of, label_of, rule_out

CARD, LICENSE = "README.md", "to-be-filled-in"
HEADS = {
    "MaskedLM": ("fill-mask", "masked language model"),
    "SequenceClassification": ("text-classification", "classifier of sequences"),
    "TokenClassification": ("token-classification", "classifier of tokens"),
}
EXAMPLES = {"dna": "TTGACAATTAATCATCGGCT", "protein": "MKTAYIAKQRQISFVKSHFS"}
NO_SETTINGS = {"architectures", "auto_map", "dtype", "label2id", "model_type", "transformers_version"}
NO_SCORE = {"threshold", "n"}
SIZES = {"standard_error": "standard error {}", "hidden_letters": "{} hidden letters"}
SIZES |= {"n_positive": "{} sequences of the class", "n_negative": "{} of the rest"}


@dataclass(frozen=True)
class Source:
    """An input of a stage, or of what that was made from: ``depth`` steps back.

    ``manifest`` is that of the stage that wrote it, or None: then it is a file, or a folder of others.
    """

    depth: int
    role: str
    name: str
    content: str
    manifest: Mapping[str, Any] | None


@dataclass(frozen=True)
class Facts:
    """What a card is a function of: the stage and its settings, inputs, counts and metrics.json.

    ``config`` and ``tokens`` are config.json and tokenizer_config.json; ``base`` is the name on the Hub of
    what the weights were taken from.
    """

    stage: str
    settings: Mapping[str, Any]
    config: Mapping[str, Any]
    tokens: Mapping[str, Any]
    sources: Sequence[Source]
    counts: Mapping[str, Any]
    metrics: Mapping[str, Any] = field(default_factory=dict)
    base: str | None = None

    @property
    def head(self) -> str:
        """What the Auto class that loads it is for, or nothing for the bare encoder."""
        name = next(iter(self.config.get("architectures") or ()), "")
        return next((head for head in HEADS if name.endswith(f"For{head}")), "")

    @property
    def alphabet(self) -> str:
        """The letters it reads; ESM's own tokenizer, which does not say, reads proteins."""
        return self.tokens.get("alphabet", "protein")

    @property
    def is_ours(self) -> bool:
        """Whether it is loaded by code of ours."""
        return self.config["model_type"].startswith("strand")


# -- where it comes from


def _places(settings: Mapping[str, Any], roles: Sequence[str]) -> dict[str, Path]:
    """Return the paths that a stage's settings give for its inputs, as far as they give one for each."""
    found: dict[str, Any] = {}
    for key, value in settings.items():
        if isinstance(value, dict):
            found |= {f"{key} {name}": path for name, path in value.items()}
        elif isinstance(value, list):
            found |= {f"{key} {i}": path for i, path in enumerate(value, 1)}
            if len(value) == sum(bool(re.fullmatch(rf"{key}\d+", role)) for role in roles):
                found |= {f"{key}{i}": path for i, path in enumerate(value)}
            found |= {key: value[0]} if len(value) == 1 else {}
        else:
            found[key] = value
    return {role: Path(found[role]) for role in roles if isinstance(found.get(role), str | Path)}


def trace(inputs: Mapping[str, str], settings: Mapping[str, Any], depth: int = 0) -> Iterator[Source]:
    """Yield what a stage read and what that was made from, as far back as the folders are there, unchanged.

    Args:
        inputs: the content hash of each input, by its role.
        settings: those of the stage, which say where the inputs lie.
        depth: how many stages lie between.
    """
    places = _places(settings, list(inputs))
    for role, content in inputs.items():
        manifest = _manifest(places[role], content) if role in places else None
        yield Source(depth, role, places[role].name if role in places else "", content, manifest)
        if manifest is not None:
            yield from trace(manifest["inputs"], manifest["config"], depth + 1)


def _manifest(path: Path, content: str) -> dict[str, Any] | None:
    try:
        manifest = read_manifest(path)
    except UserError:
        return None
    return manifest if manifest["content"] == content else None


def _flat(settings: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return settings by dotted key, of paths the names alone."""
    flat: dict[str, Any] = {}
    for key, value in settings.items():
        if isinstance(value, dict) and value:
            flat |= _flat(value, f"{prefix}{key}.")
        elif isinstance(value, list):
            flat[prefix + key] = [item.name if isinstance(item, Path) else item for item in value]
        else:
            flat[prefix + key] = value.name if isinstance(value, Path) else value
    return flat


def _read(path: Path) -> dict[str, Any]:
    return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}


def _by_name(key: str, settings: Mapping[str, Any]) -> str:
    """Return the key of a metric with the name of a data set that it is of, instead of its path."""
    metric, colon, of = key.partition(":")
    paths = settings.get("data")
    places = {str(path): i for i, path in enumerate(paths if isinstance(paths, list) else (), 1)}
    return f"{metric}:{Path(of).name}, data {places[of]}" if colon and of in places else key


def write_card(workspace: Workspace, stage: str, config: StageConfig) -> None:
    """Write README.md beside a checkpoint that is complete but for it.

    Its bytes depend on the names of the inputs and on which of their own inputs are still there, so a stage
    that calls this declares ``CARD`` volatile.
    """
    folder, settings = workspace.path, config.model_dump()
    source, scores = settings.get("source"), folder / "metrics.json"
    # Of a network that goes on, the shape is that of the checkpoint: config.json tells it.
    untold = NOT_HASHED | ({"model"} if settings.get("start_from") else set())
    facts = Facts(
        stage=stage,
        settings=_flat({key: value for key, value in settings.items() if key not in untold}),
        config=_read(folder / "config.json"),
        tokens=_read(folder / "tokenizer_config.json"),
        sources=list(trace(workspace.inputs, settings)),
        counts=workspace.counts,
        metrics={_by_name(key, settings): metric for key, metric in _read(scores).items()},
        base=None if source is None or source.is_dir() else str(source),
    )
    (folder / CARD).write_text(card(facts), encoding="utf-8")


# -- the text


def card(facts: Facts) -> str:
    """Return the model card, in the Hub's form: YAML between dashes, then Markdown."""
    parts = [_front(facts), _what(facts), _data(facts), _training(facts), _scores(facts)]
    return "\n".join([*parts, _limits(facts), _loading(facts), _settings(facts)])


def _front(facts: Facts) -> str:
    tag = HEADS[facts.head][0] if facts.head else "feature-extraction"
    field_of = {"dna": "genomics", "protein": "proteins"}[facts.alphabet]
    base = [f"base_model: {facts.base}"] if facts.base else []
    lines = [f"license: {LICENSE}  # an identifier such as apache-2.0; push refuses this one"]
    lines += ["library_name: transformers", f"pipeline_tag: {tag}", *base]
    tags = ["strandlm", "biology", facts.alphabet, *([field_of] if field_of != facts.alphabet else [])]
    return "\n".join(["---", *lines, "tags:", *(f"- {name}" for name in tags), "---", ""])


def _kind(facts: Facts) -> str:
    of = {"dna": "DNA", "protein": "proteins"}[facts.alphabet]
    if "num_columns" in facts.config:
        return (
            f"masked language model of one protein family, aligned to {facts.config['num_columns']} columns"
        )
    noun = HEADS[facts.head][1] if facts.head else "encoder"
    if facts.head != "SequenceClassification":
        return f"{noun} of {of}"
    kind = "predictor of values" if facts.config.get("problem_type") == "regression" else "classifier"
    return f"{kind} of {of} sequences"


def _what(facts: Facts) -> str:
    kind, size = _kind(facts), facts.counts.get("parameters")
    how = {
        "pretrain": "trained on hidden letters",
        "finetune": "trained on labelled sequences from a pretrained network",
        "convert": "converted from weights that were trained elsewhere",
    }
    made = f"{how.get(facts.stage, 'made')} by `strandlm {facts.stage}` (StrandLM {__version__})"
    parameters = f", with {size:,} parameters" if size else ""
    classes = facts.config.get("id2label")
    words = {"regression": "values", "multi_label_classification": "labels"}
    word = words.get(str(facts.config.get("problem_type")), "classes")
    named = f" Its {word}: {', '.join(classes.values())}." if classes and "Classif" in facts.head else ""
    article = "An" if kind.startswith("e") else "A"
    title = f"# {kind[:1].upper()}{kind[1:]}"
    return f"{title}\n\n{article} {kind}{parameters}, {made}.{named}\n"


def _cell(value: Any) -> str:
    return " ".join(shown(value).split()).replace("|", "\\|")


def _table(head: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    lines = [head, ["---"] * len(head), *([_cell(value) for value in row] for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n"


def _holds(manifest: Mapping[str, Any] | None) -> str:
    """Return how many records, rows and letters an input has in each split."""
    counts = manifest["counts"] if manifest else {}
    splits = counts.get("splits", counts)
    found = []
    for split in ("train", "validation", "test"):
        held = splits.get(split) if isinstance(splits.get(split), dict) else {}
        sizes = [f"{held[unit]:,} {unit}" for unit in ("records", "rows", "letters") if unit in held]
        found += [f"{split}: {', '.join(sizes)}"] if sizes else []
    return "; ".join(found) or "-"


def _data(facts: Facts) -> str:
    rows = []
    for source in facts.sources:
        name = f" `{source.name}`" if source.name else ""
        made = source.manifest["stage"] if source.manifest else "-"
        what = f"{'of that, ' * min(source.depth, 1)}{source.role}{name}"
        rows.append(
            ["\N{NO-BREAK SPACE}" * 4 * source.depth + what, made, source.content, _holds(source.manifest)]
        )
    head = ["what was read", "written by `strandlm`", "SHA-256 of the content", "holds"]
    return f"## Data\n\n{_table(head, rows)}"


def _training(facts: Facts) -> str:
    rows = [[words(key), value] for key, value in sorted(facts.counts.items()) if not isinstance(value, dict)]
    return f"## Counts\n\n{_table(['what', 'number'], rows)}" if rows else ""


def _scores(facts: Facts) -> str:
    found = []
    for key, metric in sorted(facts.metrics.items()):
        if not isinstance(metric, dict):
            metric = {"value": metric}
        names = [name for name in (*CONTROLS, "optimum") if is_number(metric.get(name))]
        rows = [["this model", metric.get("value")]]
        rows += [[control_name(key, name), metric[name]] for name in names]
        sizes = ", ".join(form.format(shown(metric[name])) for name, form in SIZES.items() if name in metric)
        note = f" {sizes[:1].upper()}{sizes[1:]}." if sizes else ""
        found.append(
            f"### {label_of(key)}\n\n{MEANINGS[kind_of(key)]}{note}\n\n{_table(['', 'value'], rows)}"
        )
        found += _beside(metric)
    return "## Scores\n\n" + ("\n".join(found) or "None was taken by this command.\n")


def _beside(metric: Mapping[str, Any]) -> list[str]:
    """Return a table of a classifier and its controls, with their 95 % intervals, where there are some."""
    ours = metric.get("at_threshold") or metric.get("macro")
    controls = metric.get("controls")
    if not isinstance(ours, dict) or not isinstance(controls, dict):
        return []
    keys = [key for key, value in sorted(ours.items()) if is_number(value) and key not in NO_SCORE]
    rows = [
        [name, *(_with_interval(each, k) for k in keys)]
        for name, each in {"this model": ours, **controls}.items()
    ]
    return [f"Beside its controls, with 95 % intervals:\n\n{_table(['', *map(words, keys)], rows)}"]


def _with_interval(numbers: Mapping[str, Any], key: str) -> str:
    interval = (numbers.get("intervals") or {}).get(key)
    spread = f" ({shown(interval[0])} to {shown(interval[1])})" if interval else ""
    return shown(numbers.get(key)) + spread


def _limits(facts: Facts) -> str:
    lines = [*_reach(facts), *_open(facts)]
    if facts.stage == "convert":
        lines.append("What the weights were trained on, and their licence, is for their source to say.")
    else:
        lines.append(
            "On other organisms, families or experiments than those of the data it was not measured."
        )
    if "Classif" in facts.head:
        lines.append("Its probabilities are those of data with as many of each class as it was fitted on.")
    lines.append("It is for research; nothing about persons, patients or treatments was tested.")
    return "## Limits\n\n" + "\n".join(f"- {line}" for line in lines) + "\n"


def _reach(facts: Facts) -> list[str]:
    """Return in words how much it reads at once."""
    config, tokens = facts.config, facts.tokens
    if "num_columns" in config:
        columns = config["num_columns"]
        return [f"It reads rows of this alignment alone: {columns} letters, and no special tokens."]
    letters = {"dna": "bases", "protein": "residues"}[facts.alphabet]
    k, overlapping = tokens.get("k", 1), tokens.get("overlapping", False)
    token = f"one or more {letters}" if k is None else f"{k} {letters}" if k > 1 else f"a {letters[:-1]}"
    token += ", overlapping" * overlapping
    reach = config["max_position_embeddings"] - 2
    lines = [
        f"It reads at most {reach:,} tokens at once (a token is {token}); longer sequences have to be cut."
    ]
    if facts.head == "MaskedLM" and overlapping:
        lines.append(
            f"A hidden base is {k} masked tokens: the fill-mask pipeline answers for each by itself."
        )
    return lines


def _open(facts: Facts) -> list[str]:
    """Return in words which controls it is not clearly better than."""
    found = []
    for key, metric in sorted(facts.metrics.items()):
        for verdict in rule_out(key, metric) if isinstance(metric, dict) else ():
            if not verdict["ruled_out"]:
                control = control_name(key, verdict["control"])
                found.append(
                    f"{label_of(key)}: not clearly better than {control} (three standard errors), so it is "
                    f"not ruled out that {verdict['claim']}."
                )
    return found


def _loading(facts: Facts) -> str:
    auto = f"AutoModelFor{facts.head}" if facts.head else "AutoModel"
    ask = f'tokenizer("{EXAMPLES[facts.alphabet]}", return_tensors="pt")'
    if "num_columns" in facts.config:
        ask = f'tokenizer("A" * {facts.config["num_columns"]}, add_special_tokens=False, return_tensors="pt")'
    out = "logits" if facts.head else "last_hidden_state"

    def block(before: Sequence[str], trust: str) -> str:
        lines = [f"from transformers import {auto}, AutoTokenizer", *before, ""]
        lines += ['checkpoint = "."  # this folder, or its name on the Hub']
        lines += [f"tokenizer = AutoTokenizer.from_pretrained(checkpoint{trust})"]
        lines += [f"model = {auto}.from_pretrained(checkpoint{trust})", f"{out} = model(**{ask}).{out}"]
        return "```python\n" + "\n".join(lines) + "\n```\n"

    if not facts.is_ours:
        return f"## How to load it\n\nWith transformers alone:\n\n{block([], '')}"
    ours = block(["", "import pipeline.model  # registers the classes"], "")
    return (
        f"## How to load it\n\nWhere StrandLM is installed:\n\n{ours}\n"
        "Elsewhere; the code that is run lies in this folder, so read it first:\n\n"
        f"{block([], ', trust_remote_code=True')}"
    )


def _exact(value: Any) -> str:
    """Return a setting as YAML and JSON have it, with all its digits."""
    return value if isinstance(value, str) else json.dumps(value, sort_keys=True)


def _settings(facts: Facts) -> str:
    network = [[key, _exact(value)] for key, value in sorted(facts.config.items()) if key not in NO_SETTINGS]
    stage = [[key, _exact(value)] for key, value in sorted(facts.settings.items())]
    return (
        f"## Configuration\n\n{_table(['network', 'value'], network)}\n"
        f"{_table([f'`strandlm {facts.stage}`', 'value'], stage)}"
    )

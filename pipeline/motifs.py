"""The stage that reads motifs out of a classifier's attention heads, and tests them."""

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from pipeline.artifacts import Result, Workspace, produce
from pipeline.config import MotifsConfig
from pipeline.errors import UserError
from pipeline.log import say
from pipeline.report.collect import finite
from pipeline.sequences.corpus import check_alphabet

if TYPE_CHECKING:
    from pipeline.attention.controls import Controls
    from pipeline.attention.discovery import Discovery, Half, Search
    from pipeline.attention.findings import Findings
    from pipeline.attention.halves import Rows
    from pipeline.attention.heads import Reader, Scores
    from pipeline.attention.known import Known
    from pipeline.attention.mutated import Mutated


# -- what is read


def _known(config: MotifsConfig) -> "Known":
    from pipeline.attention.known import Known
    from pipeline.attention.motif_files import read_motifs

    database: dict[str, np.ndarray] = {}
    for path in config.database:
        database |= read_motifs(path)
    missing = [name for name in config.expected if name not in database]
    if missing:
        where = f"not in {', '.join(map(str, config.database))}" if database else "in no database; give one"
        raise UserError(f"expected: {missing[0]!r} is {where}")
    return Known(database, config.expected, config.strands == "both")


def _rows(config: MotifsConfig) -> tuple["Rows", "Rows", str]:
    """Return the rows that motifs are found on, those that they are tested on, and the positive class."""
    from pipeline.attention.halves import read_halves

    splits = {"discover_on": config.discover_on, "test_on": config.test_on}
    first, second, name = read_halves(config.data, splits, config.positive, config.max_sequences, config.seed)
    sizes = (f"{part.positive.sum()} {name} and {(~part.positive).sum()} others" for part in (first, second))
    say("found on {}, tested on {}".format(*sizes))
    if "train" in config.test_on:
        say(
            "warning: motifs are tested on the train split, too; if the classifier was trained on it, its "
            "attention there may depend on the labels, and p-values are too small"
        )
    return first, second, name


def _origin(model, second: "Rows") -> tuple[int, str]:
    """Return the base that positions count from, and what it is in words."""
    from pipeline.training.classifier import decision_of

    decision = decision_of(model)
    if "offset" in decision and {len(text) for text in second.sequences} == {decision.get("window")}:
        return int(decision["offset"]), "the start site"
    return 0, "the first base"


# -- what is found


def _search(config: MotifsConfig) -> "Search":
    from pipeline.attention.discovery import Search

    keys = ("word_length", "words_per_head", "q_value", "max_motifs")
    return Search(**{key: getattr(config, key) for key in keys}, both_strands=config.strands == "both")


def _half(rows: "Rows", scores: "Scores", config: MotifsConfig) -> "Half":
    from pipeline.attention.discovery import Half
    from pipeline.attention.heads import attended

    return Half.of(rows.sequences, rows.positive, attended(scores, config.min_region), _search(config))


def _controls(config: MotifsConfig, model, read: "Reader", halves: tuple["Half", "Half"]) -> "Controls":
    from pipeline.attention.controls import Controls
    from pipeline.training.initialise import fresh

    untrained = fresh(type(model), model.config, read.codec, config.seed)
    return Controls(
        *halves,
        _search(config),
        config.min_region,
        lambda texts, what: read(model, texts, what),
        lambda texts, what: read(untrained, texts, what),
        config.seed,
        config.permutations,
    )


def _of_positives(rows: "Rows", scores: "Scores") -> tuple["Rows", "Scores"]:
    place = np.flatnonzero(rows.positive)
    return rows.chosen(place), {head: [found[i] for i in place.tolist()] for head, found in scores.items()}


def _mutated(
    config: MotifsConfig,
    model,
    read: "Reader",
    rows: "Rows",
    scores: "Scores",
    findings: "Findings",
    name: str,
) -> "Mutated | None":
    """Mutate some positives in silico, unless none are asked for."""
    from pipeline.attention.mutated import mutate
    from pipeline.training.classifier import class_names

    if not config.mutagenesis:
        return None
    names = class_names(model)
    if name not in names:
        raise UserError(
            f"positive: {name!r} is no class of {config.checkpoint}, whose classes are {', '.join(names)}; "
            "pass --mutagenesis 0, or another classifier"
        )
    number, size = names.index(name), config.batch_size
    sites = findings.sites
    return mutate(model, read.codec, rows, scores, sites, number, config.mutagenesis, size, config.seed)


# -- what is said and written


def _say_what_is_found(found: "Discovery") -> None:
    motifs = ", ".join(motif.consensus for motif in found.motifs) or "none"
    words = f"{found.significant} of {len(found.tested)} words enriched"
    say(f"attention: {words}; {len(found.motifs)} motifs: {motifs}")


def _say_what_attention_adds(found: "Discovery", controls: dict[str, "list[Discovery]"]) -> None:
    from pipeline.attention.known import same_in

    if found.motifs and "no_attention" in controls:
        plain = {"no_attention": controls["no_attention"]}
        new = [motif.consensus for motif in found.motifs if not same_in(motif, plain)]
        say(f"attention adds {', '.join(new) or 'no motif'} to plain enrichment in whole sequences")


def _write(
    workspace: Workspace,
    known: "Known",
    found: "Discovery",
    findings: "Findings",
    controls: dict[str, "list[Discovery]"],
    mutated: "Mutated | None",
) -> None:
    """Write motifs.json, controls.json and metrics.json."""
    from pipeline.attention.findings import summary
    from pipeline.attention.known import record, same_in

    hits, records = known.hits(found.motifs), []
    for motif in found.motifs:
        more = summary(findings, motif) | {"also_found_in": same_in(motif, controls)}
        if mutated:
            evidence = asdict(mutated.support[motif.name])
            more |= {"supported": evidence.pop("supported"), "mutagenesis": evidence}
        records.append(record(motif, hits.get(motif.name), more))
    beside = {name: known.control(name, runs) for name, runs in controls.items()}
    workspace.write_json("motifs.json", finite(records))
    workspace.write_json("controls.json", beside)
    workspace.write_json("metrics.json", known.metrics(found, hits, beside))


def _open(config: MotifsConfig):
    """Return the classifier, what reads its attention, and the rows of both halves with the positive class.

    Raises:
        UserError: they do not go together.
    """
    from pipeline.attention.heads import Reader, chosen_heads
    from pipeline.training.classifier import check_lengths, load_classifier

    model, codec = load_classifier(config.checkpoint)
    if codec.alphabet != "dna":
        raise UserError(f"checkpoint: {config.checkpoint} reads {codec.alphabet}; motifs are sought in DNA")
    read = Reader(codec, chosen_heads(model.config, config.heads), config.queries, config.batch_size)
    first, second, name = _rows(config)
    check_alphabet(config.data, codec.alphabet, config.checkpoint)
    records = [*zip(first.ids, first.sequences, strict=True), *zip(second.ids, second.sequences, strict=True)]
    check_lengths(records, codec, model.config.max_position_embeddings)
    return model, read, first, second, name


def _build(config: MotifsConfig, workspace: Workspace) -> None:
    from pipeline.attention.discovery import discover
    from pipeline.attention.findings import Measure, examine
    from pipeline.attention.mutated import write_mutated
    from pipeline.report.motif_folder import draw_findings, write_findings, write_motifs, write_words

    known = _known(config)
    model, read, first, second, name = _open(config)
    scores = [read(model, rows.sequences) for rows in (first, second)]
    halves = _half(first, scores[0], config), _half(second, scores[1], config)
    found = discover(*halves, _search(config))
    _say_what_is_found(found)
    control = _controls(config, model, read, halves)
    controls = {which: control.run(which) for which in dict.fromkeys(config.controls)}
    _say_what_attention_adds(found, controls)

    origin, where = _origin(model, second)
    how = Measure(config.site_p_value, config.max_spacing, config.strands == "both", origin, config.seed)
    positives, theirs = _of_positives(second, scores[1])
    findings = examine(found.motifs, (first, second), halves[1], theirs, how)
    mutated = _mutated(config, model, read, positives, theirs, findings, name)

    folder = workspace.path
    write_motifs(folder, found.motifs, config.strands == "both")
    write_words(folder, found)
    _count(workspace, found, (first, second))
    workspace.counts["instances"] = write_findings(folder, findings, (first, second), where)
    draw_findings(folder, findings, where, config.max_spacing)
    if mutated:
        write_mutated(folder, mutated)
    # The comparison with known motifs comes last: it sets the number of threads, torch's too.
    _write(workspace, known, found, findings, controls, mutated)


def _count(workspace: Workspace, found: "Discovery", halves: tuple["Rows", "Rows"]) -> None:
    for key, rows in zip(("found_on", "tested_on"), halves, strict=True):
        kinds = {"positives": rows.positive, "others": ~rows.positive}
        workspace.counts[key] = {kind: int(which.sum()) for kind, which in kinds.items()}
    workspace.counts |= {"words_tested": len(found.tested), "motifs": len(found.motifs)}


def run(config: MotifsConfig) -> Result:
    """Find motifs on one part of the rows and test them on another; write them and what speaks for them.

    The folder holds motifs.json, motifs.meme, motifs.jaspar, logos/; words.tsv (all words tested);
    instances.bed, .gff3 and .tsv; positions.json, pairs.tsv, spacings.tsv, heads.tsv, figures/; controls.json
    (the same search where there is nothing to find, or without attention) and metrics.json. With mutagenesis
    it also holds agreement.tsv, examples.npz and, in genome coordinates where they are known, bedGraph files.
    """
    inputs: dict[str, Path] = {"checkpoint": config.checkpoint, "data": config.data}
    inputs |= {f"database{i}": path for i, path in enumerate(config.database)}
    return produce("motifs", config, inputs, lambda workspace: _build(config, workspace))


if __name__ == "__main__":
    from pipeline.cli import main

    main(stage="motifs")

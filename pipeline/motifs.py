"""The stage that reads motifs out of a classifier's attention heads."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from pipeline.artifacts import Result, Workspace, produce
from pipeline.config import MotifsConfig
from pipeline.errors import UserError
from pipeline.log import say, track
from pipeline.sequences.corpus import check_alphabet, classes, load_corpus

if TYPE_CHECKING:
    from pipeline.attention.matrices import Motif
    from pipeline.attention.motif_files import Hit

LARGEST_OFFSET = 2
Scores = dict[str, list[np.ndarray]]


def _read(config: MotifsConfig) -> tuple[list[tuple[str, str]], list[tuple[str, str]]]:
    """Return (id, sequence) of positive and of other records, at most ``max_sequences`` of each."""
    from datasets import concatenate_datasets

    splits = load_corpus(config.data)
    unknown = sorted(set(config.split) - {"train", "validation", "test"})
    if unknown:
        raise UserError(f"split: {unknown[0]!r} is none of train, validation, test")
    wanted = [
        splits[name] for name in ("train", "validation", "test") if name in config.split and name in splits
    ]
    if not wanted:
        raise UserError(
            f"split: {config.data} has no {' or '.join(config.split)}; it has {', '.join(map(str, splits))}"
        )
    rows = concatenate_datasets(wanted)
    names, number = classes(rows, config.data, config.positive)
    labels = np.array(rows["label"])
    order = np.random.default_rng(config.seed).permutation(len(rows))
    chosen = [order[(labels[order] == number) == positive] for positive in (True, False)]
    if not all(map(len, chosen)):
        raise UserError(
            f"data: {config.data}: {len(chosen[0])} {names[number]}, {len(chosen[1])} others; both are needed"
        )
    records = list(zip(rows["id"], rows["sequence"], strict=True))
    positives, others = ([records[i] for i in np.sort(part[: config.max_sequences])] for part in chosen)
    return positives, others


def _heads(config: MotifsConfig, model) -> list[tuple[int, int]]:
    """Return the (layer, head) pairs to read."""
    layers, heads = model.config.num_hidden_layers, model.config.num_attention_heads
    every = {f"{layer}.{head}": (layer, head) for layer in range(layers) for head in range(heads)}
    for name in config.heads:
        if name not in every:
            raise UserError(
                f"heads: {name!r} is no head of {config.checkpoint}: it has 0.0 to {layers - 1}.{heads - 1}"
            )
    return [every[name] for name in config.heads or every]


def _attention(model, codec, sequences: list[str], config: MotifsConfig, what: str) -> Scores:
    """Return by head, for each sequence, the attention of its letters (L,)."""
    from pipeline.attention.capture import received_attention, spread_to_letters
    from pipeline.training.classifier import by_length, encode, pad

    pieces = [encode(sequence, codec) for sequence in sequences]
    tokens = [codec.tokens(codec.codes(sequence)) for sequence in sequences]
    heads = _heads(config, model)
    scores: Scores = {f"{layer}.{head}": [np.empty(0)] * len(sequences) for layer, head in heads}
    batches = by_length(pieces, config.batch_size)
    for batch in track(batches, len(batches), what):
        received = received_attention(model, pad([pieces[i] for i in batch], codec), config.queries)
        for row, i in enumerate(batch):
            inner = received[:, row, :, 1 : len(pieces[i]) - 1]
            for layer, head in heads:
                letters = spread_to_letters(inner[layer, head], tokens[i], len(sequences[i]))
                scores[f"{layer}.{head}"][i] = letters
    return scores


def _discover(positive: Scores, other: Scores, texts: tuple[list[str], list[str]], config: MotifsConfig):
    """Return the motifs of all heads together, and how many words passed."""
    from pipeline.attention.matrices import Seed, grow
    from pipeline.attention.words import enriched, false_discovery, high_regions

    def regions(scores: list[np.ndarray]) -> list[list[tuple[int, int]]]:
        return [high_regions(score, config.min_region) for score in scores]

    def strings(sequences: list[str], places) -> list[list[str]]:
        return [[s[a:b] for a, b in intervals] for s, intervals in zip(sequences, places, strict=True)]

    attended = {head: regions(scores) for head, scores in positive.items()}
    found = []
    for head in attended:
        foreground = strings(texts[0], attended[head])
        background = strings(texts[1], regions(other[head]))
        found += [(word, head) for word in enriched(foreground, background, config.word_length)]
    q_values = false_discovery([word.p_value for word, _ in found])
    pairs = [(word, float(q), head) for (word, head), q in zip(found, q_values, strict=True)]
    seeds = [Seed(word, q, head) for word, q, head in pairs if q <= config.q_value]
    seeds.sort(key=lambda seed: (seed.word.p_value, seed.word.word, seed.head))
    return grow(seeds, texts[0], attended, config.max_motifs), len(seeds)


def _database(config: MotifsConfig) -> dict[str, np.ndarray]:
    from pipeline.attention.motif_files import read_motifs

    database: dict[str, np.ndarray] = {}
    for path in config.database:
        database |= read_motifs(path)
    missing = [name for name in config.expected if name not in database]
    if missing:
        where = f"not in {', '.join(map(str, config.database))}" if database else "in no database; give one"
        raise UserError(f"expected: {missing[0]!r} is {where}")
    return database


def _hits(motifs: "list[Motif]", database: dict[str, np.ndarray]) -> "dict[str, Hit]":
    from pipeline.attention.motif_files import best_hits

    if not motifs or not database:
        return {}
    found = best_hits({motif.name: motif.frequencies for motif in motifs}, database)
    return {hit.query: hit for hit in found}


def _recovered(hits: "dict[str, Hit]", expected: list[str]) -> list[str]:
    """Return the expected motifs that are the best hit of a found one, the right way round and in place."""
    good = {h.target for h in hits.values() if h.strand == "+" and abs(h.offset) <= LARGEST_OFFSET}
    return [name for name in expected if name in good]


def _record(motif: "Motif", hit: "Hit | None") -> dict[str, Any]:
    best = None
    if hit:
        best = {"target": hit.target, "p_value": hit.p_value, "offset": hit.offset, "strand": hit.strand}
    return {
        "name": motif.name,
        "consensus": motif.consensus,
        "n_sites": round(motif.n_sites, 1),
        "seed_word": motif.word,
        "p_value": motif.p_value,
        "q_value": motif.q_value,
        "heads": motif.heads,
        "matrix": np.round(motif.frequencies, 4).tolist(),
        "best_hit": best,
    }


def _write(workspace: Workspace, motifs: "list[Motif]", hits: "dict[str, Hit]") -> None:
    from pipeline.attention.motif_files import write_meme
    from pipeline.report.logos import draw_logo

    records = [_record(motif, hits.get(motif.name)) for motif in motifs]
    workspace.write_json("motifs.json", records)
    sites = {motif.name: max(1, round(motif.n_sites)) for motif in motifs}
    write_meme(workspace.path / "motifs.meme", {m.name: m.frequencies for m in motifs}, sites)
    (workspace.path / "logos").mkdir()
    for motif in motifs:
        title = f"{motif.name} (heads {', '.join(motif.heads[:4])}{'...' if len(motif.heads) > 4 else ''})"
        draw_logo(motif.frequencies, workspace.path / "logos" / f"{motif.name}.png", title)


def _metrics(motifs, hits, control, control_hits, expected: list[str]) -> dict[str, Any]:
    if not expected:
        return {"motifs_found": {"value": len(motifs), "untrained": len(control)}}
    found = _recovered(hits, expected)
    return {
        "motifs_recovered": {
            "value": len(found),
            "untrained": len(_recovered(control_hits, expected)),
            "of": len(expected),
            "found": found,
            "motifs": len(motifs),
            "motifs_untrained": len(control),
        }
    }


def _build(config: MotifsConfig, workspace: Workspace) -> None:
    from pipeline.training.classifier import check_lengths, load_classifier
    from pipeline.training.initialise import fresh

    database = _database(config)
    model, codec = load_classifier(config.checkpoint)
    if codec.alphabet != "dna":
        raise UserError(f"checkpoint: {config.checkpoint} reads {codec.alphabet}; motifs are sought in DNA")
    _heads(config, model)
    records = _read(config)
    check_alphabet(config.data, codec.alphabet, config.checkpoint)
    check_lengths([*records[0], *records[1]], codec, model.config.max_position_embeddings)
    positives, others = ([sequence for _, sequence in part] for part in records)
    texts = (positives, others)
    results = []
    for network in (model, fresh(type(model), model.config, codec, config.seed)):
        name = "attention" if network is model else "attention of an untrained network"
        scores = [_attention(network, codec, text, config, name) for text in texts]
        motifs, words = _discover(scores[0], scores[1], texts, config)
        results.append(motifs)
        consensus = ", ".join(motif.consensus for motif in motifs)
        say(f"{name}: {words} enriched words, {len(motifs)} motifs {consensus}")
    motifs, control = results
    # The comparison comes last: it sets the number of threads, torch's too.
    hits, control_hits = _hits(motifs, database), _hits(control, database)
    _write(workspace, motifs, hits)
    workspace.counts |= {"positives": len(texts[0]), "others": len(texts[1]), "motifs": len(motifs)}
    workspace.write_json("metrics.json", _metrics(motifs, hits, control, control_hits, config.expected))


def run(config: MotifsConfig) -> Result:
    """Write motifs.json, motifs.meme, logos/ and metrics.json; an untrained network is read the same way."""
    inputs: dict[str, Path] = {"checkpoint": config.checkpoint, "data": config.data}
    inputs |= {f"database{i}": path for i, path in enumerate(config.database)}
    return produce("motifs", config, inputs, lambda workspace: _build(config, workspace))


if __name__ == "__main__":
    from pipeline.cli import main

    main(stage="motifs")

"""The stage that gives scores without labels: to sequences, variants of a genome, protein substitutions."""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from pipeline.artifacts import Result, Workspace, produce
from pipeline.config import LettersConfig, ScoreConfig
from pipeline.errors import UserError
from pipeline.log import say, track

if TYPE_CHECKING:
    from pipeline.sequences.genomes import IndexedGenome
    from pipeline.sequences.variants import Alleles, Placed, Variant
    from pipeline.tokens.likelihood import Change, Likelihood, Marginals
    from pipeline.tokens.windows import Context

LETTERS = 1 << 14  # of sequences, scored together
VARIANTS = 64
ROWS = 4096
MISSING = ("", "na", "nan", "null", "none", ".")
Row = dict[str, Any]


class _Scorer:
    """A masked language model, and what becomes of rows that it cannot score."""

    def __init__(self, config: ScoreConfig, alphabet: str | None, what: str):
        from pipeline.sequences.records import Faults, Notes
        from pipeline.tokens.kmers import read_facts
        from pipeline.training.scores import load_language_model

        self.config = config
        self.model, self.codec = load_language_model(config.checkpoint)
        if alphabet not in (None, self.codec.alphabet):
            raise UserError(
                f"checkpoint: {config.checkpoint} reads {self.codec.alphabet}, {what} need {alphabet}"
            )
        self.letters = LettersConfig(**read_facts(config.checkpoint).get("letters", {}))
        self.size = self.model.config.max_position_embeddings - 2
        self.budget = config.batch_size * (self.size + 2)
        self.notes = Notes()
        self.faults = Faults(config.on_bad_record, self.notes)

    def finish(self, rows: list[Row], score: str, workspace: Workspace) -> None:
        """Write scores.tsv, and count the rows.

        Raises:
            UserError: none has a score.
        """
        import pandas as pd

        scored = sum(row[score] is not None for row in rows)
        if not scored:
            why = next((row["note"] for row in rows if row["note"]), "")
            raise UserError(f"none of {len(rows)} rows can be scored; the first: {why}")
        path = workspace.path / "scores.tsv"
        pd.DataFrame(rows).to_csv(path, sep="\t", index=False, float_format="%.9g")
        workspace.counts |= {"rows": len(rows), "scored": scored, **+self.notes}
        failed = f", {len(rows) - scored} have no score (column note)" if scored < len(rows) else ""
        say(f"{scored} of {len(rows)} rows scored{failed}: {self.config.output / 'scores.tsv'}")


# -- sequences


def _sequences(config: ScoreConfig, workspace: Workspace) -> None:
    """Write the pseudo-log-likelihood of every sequence, in input order."""
    from pipeline.training.classifier import enough_memory, load_records

    scorer = _Scorer(config, None, "sequences")
    records, context = load_records(config, scorer.model, scorer.codec, scorer.faults)
    chunks = list(_chunks(records))
    rows: list[Row] = []
    with enough_memory(config.batch_size):
        for chunk in track(chunks, len(chunks), "scoring"):
            rows += _sequence_rows(chunk, scorer, context)
    scorer.finish(rows, "pseudo_log_likelihood", workspace)
    for key in ("scored", "not_scored"):
        workspace.counts[f"letters_{key}"] = sum(row[key] for row in rows)
    workspace.counts |= context.counts(len(records))


def _chunks(records: list[tuple[str, str, str]]) -> Iterator[list[tuple[str, str, str]]]:
    """Yield records in lots of about as many letters."""
    chunk, letters = [], 0
    for record in records:
        chunk.append(record)
        letters += len(record[1])
        if letters >= LETTERS:
            yield chunk
            chunk, letters = [], 0
    if chunk:
        yield chunk


def _sequence_rows(chunk: list[tuple[str, str, str]], scorer: _Scorer, context: "Context") -> list[Row]:
    from pipeline.tokens.likelihood import pseudo_log_likelihoods

    readings = [context.read(*record) for record in chunk]
    read = {row: reading for row, reading in enumerate(readings) if reading.windows}
    texts = [(reading, scorer.codec.codes(chunk[row][1])) for row, reading in read.items()]
    found = pseudo_log_likelihoods(scorer.model, scorer.codec, texts, scorer.budget)
    likelihoods = dict(zip(read, found, strict=True))
    rows = []
    for row, (name, sequence, _) in enumerate(chunk):
        rows.append(_sequence_row(name, len(sequence), likelihoods.get(row), readings[row].note, scorer))
    return rows


def _sequence_row(name: str, length: int, found: "Likelihood | None", note: str, scorer: _Scorer) -> Row:
    """Return the row of a sequence; one without a letter that can be hidden has no score."""
    if found is not None and not found.scored:
        note = scorer.faults.note(f"record {name!r}", "no letter in it that can be hidden")
    scored = found.scored if found else 0
    scorer.notes["letters_not_hidden_alone"] += found.joined if found else 0
    return {
        "id": name,
        "pseudo_log_likelihood": found.nats if found and scored else None,
        "bits_per_letter": found.bits_per_letter if found and scored else None,
        "scored": scored,
        "not_scored": found.not_scored if found else length,
        "note": note,
    }


# -- variants


@dataclass
class _Line:
    """A variant, its alleles between what is around them, and what is written of it."""

    variant: "Variant"
    where: str
    columns: Row
    alleles: "Alleles | None" = None
    notes: list[str] = field(default_factory=list)

    def row(self) -> Row:
        """Return the row of the table."""
        v = self.variant
        place = {"line": v.line, "chromosome": v.chromosome}
        place |= {"position": "" if v.position is None else v.position, "id": v.name}
        alleles = {"reference": v.reference, "alternative": v.alternative}
        return {**place, **alleles, **self.columns, "note": "; ".join(self.notes)}


def _variants(config: ScoreConfig, workspace: Workspace) -> None:
    """Write the changes of scores of every allele, in the order of the file."""
    from pipeline.sequences.genomes import open_genome
    from pipeline.sequences.variants import check_names, read_variants
    from pipeline.training.classifier import enough_memory

    assert config.variants is not None
    assert config.genome is not None
    scorer = _Scorer(config, "dna", "variants")
    scores = [_Changes(scorer), *([_Promoters(scorer)] if config.classifier else [])]
    variants = read_variants(config.variants)
    chunks = [variants[i : i + VARIANTS] for i in range(0, len(variants), VARIANTS)]
    rows: list[Row] = []
    opened = open_genome(config.genome, scorer.letters, scorer.notes)
    with opened as genome, enough_memory(config.batch_size):
        check_names(variants, config.variants, genome)
        for chunk in track(chunks, len(chunks), "scoring"):
            lines = [_line(variant, genome, scores, scorer) for variant in chunk]
            for score in scores:
                score.fill([line for line in lines if line.alleles])
            rows += [line.row() for line in lines]
    scorer.finish(rows, "log_likelihood_change", workspace)
    methods = [row["method"] for row in rows]
    workspace.counts["methods"] = {method: methods.count(method) for method in ("masked", "window")}


def _line(
    variant: "Variant", genome: "IndexedGenome", scores: "list[_Changes | _Promoters]", scorer: _Scorer
) -> _Line:
    """Return a variant with the letters that the scores need, or why it has none."""
    from pipeline.sequences.variants import UnscorableError, alleles_of

    empty: Row = {name: None for score in scores for name in score.columns}
    line = _Line(variant, f"{scorer.config.variants}: line {variant.line}", empty)
    try:
        line.alleles = alleles_of(variant, genome, max(score.window for score in scores))
    except UnscorableError as fault:
        line.notes.append(scorer.faults.note(line.where, fault))
    return line


def _both_strands(pair: tuple[str, str]) -> list[tuple[str, str]]:
    from pipeline.sequences.alphabets import reverse_complement

    return [pair, (reverse_complement(pair[0]), reverse_complement(pair[1]))]


class _Changes:
    """Changes of log-likelihood.

    Substitutions have the masked marginal of the bases that change; insertions and deletions (and all, if
    asked for, or with byte pairs) the difference of the pseudo-log-likelihoods of two windows, as PLLR does
    (Brandes et al. 2023, doi:10.1038/s41588-023-01465-0), but here the windows are equally long.
    """

    columns = ("log_likelihood_change", "method")

    def __init__(self, scorer: _Scorer):
        from pipeline.tokens.kmers import KmerCodec

        config, codec = scorer.config, scorer.codec
        longest = scorer.size * codec.stride if isinstance(codec, KmerCodec) else scorer.size
        if (config.window or 0) > longest:
            raise UserError(
                f"window: {config.window}: the model's context is {longest} bases; use at most that"
            )
        self.window = config.window or longest
        self.masks = config.method == "masked" and isinstance(codec, KmerCodec)
        self.scorer = scorer

    def fill(self, lines: list[_Line]) -> None:
        """Add the change of log-likelihood of variants, in nats, and how it was measured."""
        from pipeline.sequences.variants import UnscorableError

        masked, whole = [], []
        for line in lines:
            assert line.alleles is not None
            masks = self.masks and line.alleles.substitution
            try:
                (masked if masks else whole).append((line, self._windows(line.alleles, masks)))
            except UnscorableError as fault:
                line.notes.append(self.scorer.faults.note(line.where, fault))
        self._fill_masked(masked)
        self._fill_whole(whole)

    def _windows(self, alleles: "Alleles", masks: bool) -> list[tuple[str, str]]:
        """Return windows with both alleles, and those of the other strand, too, if it counts.

        They are smaller where they have more tokens than the model reads, as k-mers with an N have.

        Raises:
            UnscorableError: an allele does not fit into the window.
        """
        codec, size = self.scorer.codec, self.window
        while True:
            pair = alleles.windows(size, alleles.middle(size))
            pairs = _both_strands(pair) if self.scorer.config.strandless else [pair]
            texts = [text for each in pairs for text in each]
            if masks or all(len(codec.tokens(codec.codes(text)).ids) <= self.scorer.size for text in texts):
                return pairs
            size -= codec.k

    def _fill_masked(self, lines: list[tuple[_Line, list[tuple[str, str]]]]) -> None:
        from pipeline.tokens.likelihood import Marginals

        marginals = Marginals(self.scorer.codec, self.scorer.size)
        keys = [[marginals.add(*pair) for pair in pairs] for _, pairs in lines]
        answers = marginals.answers(self.scorer.model, self.scorer.budget)
        for (line, _), asked in zip(lines, keys, strict=True):
            found = [answers[key] for key in asked if key]
            if len(found) == len(asked):
                line.columns |= {"log_likelihood_change": np.mean(found), "method": "masked"}
            else:
                fault = f"what changes is longer than the model's {self.scorer.size} tokens"
                line.notes.append(self.scorer.faults.note(line.where, fault))

    def _fill_whole(self, lines: list[tuple[_Line, list[tuple[str, str]]]]) -> None:
        from pipeline.tokens.likelihood import text_likelihoods

        texts = sorted({text for _, pairs in lines for pair in pairs for text in pair})
        found = text_likelihoods(
            self.scorer.model, self.scorer.codec, texts, self.scorer.size, self.scorer.budget
        )
        for line, pairs in lines:
            changes = [found[new].nats - found[old].nats for old, new in pairs]
            line.columns |= {"log_likelihood_change": np.mean(changes), "method": "window"}
            old, new = (found[text].scored for text in pairs[0])
            if old != new:
                line.notes.append(f"{old} and {new} letters of the windows are scored")


class _Promoters:
    """Changes of a classifier's score: of the log-odds of its class, the allele at one offset or at any."""

    columns = tuple(
        f"classifier_{name}"
        for name in ("reference", "alternative", "change", "mean_change", "strand", "offset")
    )

    def __init__(self, scorer: _Scorer):
        from pipeline.tokens.kmers import KmerCodec
        from pipeline.training.classifier import (
            check_strandless,
            class_names,
            decision_of,
            load_classifier,
            positive_class,
        )

        config = scorer.config
        assert config.classifier is not None
        self.model, self.codec = load_classifier(config.classifier)
        if self.codec.alphabet != "dna":
            raise UserError(f"classifier: {config.classifier} reads {self.codec.alphabet}, variants need dna")
        if config.strandless:
            check_strandless(self.model, config.classifier, "strandless")
        self.model.to(scorer.model.device)
        names = class_names(self.model)
        wanted = config.positive or positive_class(self.model)
        if wanted not in names:
            known = ", ".join(names)
            raise UserError(f"positive: {wanted!r} is no class of {config.classifier}; its classes: {known}")
        window = config.classifier_window or decision_of(self.model).get("window")
        if window is None:
            raise UserError(
                "classifier_window: give the bases of the windows that the classifier was trained on, which "
                "its config does not record"
            )
        if (config.offset or 0) >= window:
            raise UserError(f"offset: {config.offset}: not in a window of {window} bases")
        self.window, self.positive, self.scorer = window, names.index(wanted), scorer
        self.size = self.model.config.max_position_embeddings - 2
        if isinstance(self.codec, KmerCodec) and (need := self.codec.most_tokens(self.window)) > self.size:
            fault = f"{self.window} bases are {need} tokens, more than the classifier's {self.size}"
            raise UserError(f"classifier_window: {fault}; use fewer")

    def fill(self, lines: list[_Line]) -> None:
        """Add both scores, their change, and strand and offset of the windows that change most."""
        places = [self._places(line.alleles) for line in lines if line.alleles]
        log_odds = self._log_odds({text for some in places for each in some for text in (each.old, each.new)})
        for line, some in zip(lines, places, strict=True):
            known = [each for each in some if each.old in log_odds and each.new in log_odds]
            if known:
                line.columns |= self._columns(known, log_odds)
            else:
                fault = f"no window of {self.window} bases with both alleles for the classifier"
                line.notes.append(self.scorer.faults.note(line.where, fault))

    def _places(self, alleles: "Alleles") -> "list[Placed]":
        """Return all windows that may hold both alleles."""
        config = self.scorer.config
        strand = "+" if config.strandless else config.strand
        offsets = range(self.window) if config.offset is None else [config.offset]
        sides = "+-" if strand == "best" else strand
        return [each for side in sides for each in alleles.placed(self.window, offsets, side)]

    def _log_odds(self, texts: set[str]) -> dict[str, float]:
        """Return the log-odds of the class, in nats, of those windows that fit into the context."""
        from pipeline.sequences.alphabets import reverse_complement
        from pipeline.training.classifier import window_logits

        strandless = self.scorer.config.strandless
        read = {*texts, *map(reverse_complement, texts)} if strandless else texts
        ids = {text: self.codec.tokens(self.codec.codes(text)).ids for text in sorted(read)}
        ids = {text: each for text, each in ids.items() if len(each) <= self.size}
        logits_NC = window_logits(self.model, self.codec, list(ids.values()), self.scorer.config.batch_size)
        others_NC = np.delete(logits_NC, self.positive, 1)
        found = dict(zip(ids, logits_NC[:, self.positive] - np.logaddexp.reduce(others_NC, 1), strict=True))
        if not strandless:
            return found
        both = {text: [found[x] for x in (text, reverse_complement(text)) if x in found] for text in texts}
        return {text: float(np.mean(pair)) for text, pair in both.items() if len(pair) == 2}

    def _columns(self, places: "list[Placed]", log_odds: dict[str, float]) -> Row:
        """Return what is written: of the strand with the highest score, the place where it changes most."""
        best = max(places, key=lambda each: max(log_odds[each.old], log_odds[each.new])).strand
        places = [each for each in places if each.strand == best]
        changes = np.array([log_odds[each.new] - log_odds[each.old] for each in places])
        most = int(np.abs(changes).argmax())
        old, new = (1 / (1 + np.exp(-log_odds[text])) for text in (places[most].old, places[most].new))
        strand = "both" if self.scorer.config.strandless else best
        values = old, new, changes[most], changes.mean(), strand, places[most].offset
        return dict(zip(self.columns, values, strict=True))


# -- substitutions


def _substitutions(config: ScoreConfig, workspace: Workspace) -> None:
    """Write the masked marginal of every row, and its correlation with what was measured."""
    from pipeline.sequences.variants import read_rows
    from pipeline.training.classifier import enough_memory

    assert config.substitutions is not None
    scorer = _Scorer(config, "protein", "substitutions")
    proteins = _proteins(scorer)
    named = [config.protein_column, config.substitution_column, config.measured_column]
    table = read_rows(config.substitutions, [name for name in named if name], "substitutions")
    chunks = [table[i : i + ROWS] for i in range(0, len(table), ROWS)]
    rows: list[Row] = []
    with enough_memory(config.batch_size):
        for chunk in track(chunks, len(chunks), "scoring"):
            rows += _substitution_rows(chunk, proteins, scorer)
    scorer.finish(rows, "masked_marginal", workspace)
    if config.measured_column:
        workspace.write_json("metrics.json", _correlations(rows, config.seed))


def _proteins(scorer: _Scorer) -> dict[str, str]:
    """Return the wild types by name.

    Raises:
        UserError: the file cannot be read, or has several and no column says which is meant.
    """
    from pipeline.sequences.readers import load_sequences

    config = scorer.config
    assert config.wild_type is not None
    proteins = dict(load_sequences([config.wild_type], "protein", scorer.letters))
    if len(proteins) > 1 and not config.protein_column:
        raise UserError(f"wild_type: {config.wild_type} has {len(proteins)} records; pass --protein-column")
    return proteins


def _substitution_rows(
    chunk: list[tuple[int, dict[str, str]]], proteins: dict[str, str], scorer: _Scorer
) -> list[Row]:
    from pipeline.sequences.variants import UnscorableError
    from pipeline.tokens.likelihood import Marginals

    marginals = Marginals(scorer.codec, scorer.size)
    rows, keys = [], []
    for line, cells in chunk:
        row, key = _substitution_row(line, cells, scorer), None
        try:
            key = _ask(row, proteins, marginals)
        except UnscorableError as fault:
            fault = scorer.faults.note(f"{scorer.config.substitutions}: line {line}", fault)
            row["note"] = "; ".join(filter(None, (row["note"], fault)))
        rows.append(row)
        keys.append(key)
    answers = marginals.answers(scorer.model, scorer.budget)
    for row, key in zip(rows, keys, strict=True):
        if key:
            row["masked_marginal"] = answers[key]
    return rows


def _ask(row: Row, proteins: dict[str, str], marginals: "Marginals") -> "Change | None":
    """Ask for a row's substitutions; one that changes nothing has its score, 0, without being asked for.

    Raises:
        UnscorableError: there is no such protein, its substitutions are none, or do not fit into the context.
    """
    from pipeline.sequences.variants import UnscorableError, parse_substitutions

    if (row["protein"] or len(proteins) > 1) and row["protein"] not in proteins:
        raise UnscorableError(f"wild_type has no record {row['protein']!r}")
    protein = proteins[row["protein"]] if row["protein"] else next(iter(proteins.values()))
    new = list(protein)
    for each in parse_substitutions(row["substitutions"], protein):
        new[each.place] = each.mutant
    if protein == (mutant := "".join(new)):
        row["masked_marginal"] = 0.0
        return None
    key = marginals.add(protein, mutant)
    if key is None:
        raise UnscorableError(f"the places are farther apart than the model's {marginals.size} residues")
    return key


def _substitution_row(line: int, cells: dict[str, str], scorer: _Scorer) -> Row:
    """Return what is known of a row before it is scored; a measurement that is no number is told."""
    config = scorer.config
    row: Row = {"line": line}
    row["protein"] = cells[config.protein_column] if config.protein_column else ""
    row |= {"substitutions": cells[config.substitution_column], "masked_marginal": None}
    note = ""
    if config.measured_column:
        text = cells[config.measured_column]
        row["measured"] = None
        try:
            row["measured"] = None if text.lower() in MISSING else _finite(text)
        except ValueError:
            fault = f"{config.measured_column} {text!r} is no number"
            note = scorer.faults.note(f"{config.substitutions}: line {line}", fault)
    return row | {"note": note}


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(text)
    return number


def _correlations(rows: list[Row], seed: int) -> Row:
    """Return Spearman's correlation of scores and measurements of every protein, where there is one."""
    from pipeline.training.correlation import spearman

    found = {}
    for name in dict.fromkeys(row["protein"] for row in rows):
        own = [
            row
            for row in rows
            if row["protein"] == name and None not in (row["measured"], row["masked_marginal"])
        ]
        pairs_N2 = np.array([(row["masked_marginal"], row["measured"]) for row in own]).reshape(-1, 2)
        if len(pairs_N2) < 3 or (np.ptp(pairs_N2, 0) == 0).any():
            say(f"no correlation{name and f' for {name}'}: {len(pairs_N2)} measured rows, or all alike")
            continue
        found[f"spearman:{name}" if name else "spearman"] = score = spearman(
            pairs_N2[:, 0], pairs_N2[:, 1], seed
        )
        words = "{value:.3f} ({low:.3f} to {high:.3f}), n = {n}".format(**score)
        say(f"Spearman's correlation{name and f' of {name}'}: {words}")
    return found


# -- the stage


def _job(config: ScoreConfig) -> tuple[Callable[[ScoreConfig, Workspace], None], dict[str, Path]]:
    """Return what is to be done, and the files that it reads.

    Raises:
        UserError: nothing, or several things, are to be scored, or a file is missing for it.
    """
    given = [name for name in ("input", "variants", "substitutions") if getattr(config, name)]
    if len(given) != 1:
        what = " and ".join(given) or "nothing"
        raise UserError(f"score: {what} given; give one of --input, --variants and --substitutions")
    needs = {"input": (), "variants": ("genome",), "substitutions": ("wild_type",)}[given[0]]
    for name in needs:
        if getattr(config, name) is None:
            flag = name.replace("_", "-")
            raise UserError(f"{name}: no file given; {given[0]} need one (--{flag})")
    if config.classifier and given != ["variants"]:
        raise UserError(f"classifier: it is for variants, not for {given[0]}; leave it out, or use predict")
    job = {"input": _sequences, "variants": _variants, "substitutions": _substitutions}[given[0]]
    files = {f"input{i}": path for i, path in enumerate(config.input)}
    named = ("checkpoint", "classifier", "variants", "genome", "substitutions", "wild_type")
    return job, files | {name: path for name in named if (path := getattr(config, name)) is not None}


def run(config: ScoreConfig) -> Result:
    """Write scores.tsv, one row for every sequence, allele or row of substitutions, in input order.

    Sequences: ``pseudo_log_likelihood`` (nats), ``bits_per_letter``, and how many letters are and are not
    scored. Variants: ``log_likelihood_change`` (nats; below 0: the alternative allele is less likely) and by
    which method; with a classifier the probabilities of its class with either allele and the change of its
    log-odds (nats), in the window that changes most and on average. Substitutions: ``masked_marginal``
    (nats), and with measurements Spearman's correlation in metrics.json. ``note`` says why a row has none.
    """
    job, inputs = _job(config)
    return produce("score", config, inputs, lambda workspace: job(config, workspace))


if __name__ == "__main__":
    from pipeline.cli import main

    main(stage="score")

"""The stage that asks what vectors know of a label, by linear probes."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from pipeline.artifacts import Result, Workspace, hash_input, produce, read_manifest
from pipeline.config import LettersConfig, ProbeConfig
from pipeline.errors import UserError, reason
from pipeline.log import say

if TYPE_CHECKING:
    from pipeline.training.probes import Probing

COMPOSITION, KMERS = "composition", "kmers"
WORD = {"dna": 4, "protein": 2}


@dataclass(frozen=True)
class _Rows:
    """Rows of the table with a target, by the id of their record, and the values of the cluster column."""

    targets: dict[str, str]
    clusters: dict[str, str]

    def only(self, ids: Sequence[str]) -> "_Rows":
        """Return the rows of these records."""
        clusters = {name: self.clusters[name] for name in ids} if self.clusters else {}
        return _Rows({name: self.targets[name] for name in ids}, clusters)


def _cells(config: ProbeConfig) -> dict[str, list[str]]:
    """Return the columns of the table that are used; what is missing is empty.

    Raises:
        UserError: the table cannot be read, or lacks one of them.
    """
    import pandas as pd

    path = config.table
    try:
        if path.suffix in (".parquet", ".pq"):
            table = pd.read_parquet(path)
        else:
            separator = "," if ".csv" in path.suffixes else "\t"
            table = pd.read_csv(path, sep=separator, dtype=str, keep_default_na=False)
    except ValueError as error:
        raise UserError(f"{path}: cannot be read as a table: {reason(error)}") from None
    cells = {}
    for column in [config.id_column, config.target, *filter(None, [config.cluster_column])]:
        if column not in table.columns:
            known = ", ".join(map(repr, table.columns))
            raise UserError(f"{path}: no column {column!r}; it has {known}")
        cells[column] = ["" if pd.isna(cell) else str(cell).strip() for cell in table[column].tolist()]
    return cells


def _read_table(config: ProbeConfig, counts: dict[str, Any]) -> _Rows:
    """Read the rows that have a target.

    Raises:
        UserError: the table cannot be read, an id comes twice, or a cluster is missing.
    """
    cells = _cells(config)
    ids, targets = cells[config.id_column], cells[config.target]
    name, times = Counter(ids).most_common(1)[0] if ids else ("", 0)
    if times > 1:
        raise UserError(f"{config.table}: the id {name!r} comes {times} times; give every record one row")
    counts["rows_without_target"] = targets.count("")
    clusters = {}
    if config.cluster_column:
        rows = zip(ids, cells[config.cluster_column], targets, strict=True)
        clusters = {name: cluster for name, cluster, target in rows if target}
        if empty := list(clusters.values()).count(""):
            raise UserError(f"{config.table}: {empty} rows with a target have no {config.cluster_column}")
    return _Rows({name: target for name, target in zip(ids, targets, strict=True) if target}, clusters)


# -- vectors


def _layer(config: ProbeConfig, folder: Path, index: dict[str, Any]) -> int:
    """Return the layer that is probed.

    Raises:
        UserError: there are vectors of letters, or the layer is not among several.
    """
    layers = index["layers"]
    if index["pooling"] == "per_letter":
        raise UserError(f"{folder}: has vectors of letters; run embed with --pooling mean")
    if config.layer is None and len(layers) > 1:
        raise UserError(f"layer: {folder} has the layers {', '.join(map(str, layers))}; pass one as --layer")
    layer = layers[0] if config.layer is None else config.layer
    if layer not in layers:
        raise UserError(f"layer: {layer}: {folder} has {', '.join(map(str, layers))}")
    return layer


def _vectors(config: ProbeConfig, folder: Path, wanted: set[str]) -> dict[str, np.ndarray]:
    """Return the vectors of those of the wanted records that have one, in the order of the folder."""
    from pipeline.training.shards import read_index, read_pooled

    index = read_index(folder)
    found = {}
    for ids, vectors_ND in read_pooled(folder, index, _layer(config, folder, index)):
        there = ~np.isnan(vectors_ND).any(1)
        found |= {ids[i]: vectors_ND[i] for i in np.flatnonzero(there) if ids[i] in wanted}
    return found


def _inputs_of(config: ProbeConfig) -> list[Path]:
    """Return the files with the sequences: those given, or those that the vectors were made of.

    Raises:
        UserError: these are not there any more, or have changed.
    """
    if config.input:
        return config.input
    manifest = read_manifest(config.vectors)
    if manifest["stage"] != "embed":
        raise UserError(f"{config.vectors}: written by {manifest['stage']}, not by embed")
    paths = [Path(path) for path in manifest["config"]["input"]]
    for i, path in enumerate(paths):
        if not path.exists() or hash_input(path) != manifest["inputs"][f"input{i}"]:
            raise UserError(
                f"input: {path}, which the vectors were made of, is not there or has changed; pass the "
                "sequences as --input"
            )
    return paths


def _sequences(config: ProbeConfig, index: dict[str, Any], wanted: Sequence[str]) -> dict[str, bytes]:
    """Return the clean sequences of the wanted records.

    Raises:
        UserError: one of them is not there, or has bad letters.
    """
    from pipeline.sequences.readers import clean_record, read_files

    made = read_manifest(config.vectors)["config"]
    columns = {name: made[name] for name in ("sequence_column", "id_column")}
    letters, missing, found = LettersConfig(**index["letters"]), set(wanted), {}
    for record in read_files(_inputs_of(config), **columns):
        if record.id in missing:
            missing.remove(record.id)
            found[record.id] = clean_record(record, index["alphabet"], letters).sequence
    if missing:
        raise UserError(f"input: no sequence of record {min(missing)!r} ({len(missing)} such); pass all")
    return found


def _features(config: ProbeConfig, rows: _Rows, counts: dict[str, Any]):
    """Return the features (N, F) of the records that have a vector, ours first; and their sequences.

    Raises:
        UserError: the untrained model has no vector of one of them, or there are none.
    """
    from pipeline.tokens.kmers import KmerCodec
    from pipeline.training.controls import kmer_shares
    from pipeline.training.shards import read_index

    ours = _vectors(config, config.vectors, set(rows.targets))
    counts |= {"records": len(ours), "rows_without_vector": len(rows.targets) - len(ours)}
    if not ours:
        raise UserError(f"{config.table}: no id of it has a vector in {config.vectors}; is it the id column?")
    features = {"vectors": np.stack(list(ours.values()))}
    if config.untrained:
        theirs = _vectors(config, config.untrained, set(ours))
        if absent := [name for name in ours if name not in theirs]:
            raise UserError(f"untrained: {config.untrained} has no vector of record {absent[0]!r}")
        features["untrained"] = np.stack([theirs[name] for name in ours])
    index = read_index(config.vectors)
    sequences = _sequences(config, index, list(ours))
    codec = KmerCodec(index["alphabet"], 1, False)
    codes = [codec.codes(sequences[name]) for name in ours]
    for name, k in ((COMPOSITION, 1), (KMERS, WORD[index["alphabet"]])):
        features[name] = kmer_shares(codes, k, codec.n_real)
    return list(ours), features, sequences


# -- targets


def _is_regression(config: ProbeConfig, targets: Sequence[str]) -> bool:
    """Tell whether targets are measured numbers, and say it if that was not told."""
    if config.task != "auto":
        return config.task == "regression"
    try:
        numbers = np.array(targets, float)
    except ValueError:
        numbers = np.zeros(0)
    regression = len(numbers) > 0 and bool((numbers != np.round(numbers)).any())
    say(f"task: {'regression' if regression else 'classification'}, by the targets")
    return regression


def _numbers(config: ProbeConfig, rows: _Rows) -> np.ndarray:
    found = []
    for name, text in rows.targets.items():
        try:
            found.append(float(text))
        except ValueError:
            found.append(np.nan)
        if not np.isfinite(found[-1]):
            raise UserError(
                f"{config.table}: record {name!r}: target {text!r} is no number; correct the cell"
            )
    return np.array(found)


def _probing(config: ProbeConfig, rows: _Rows, sequences: dict[str, bytes]) -> "Probing":
    """Return targets, and what stays together: clusters, or equal sequences.

    Raises:
        UserError: there is one class, or one number.
    """
    from pipeline.sequences.splits import digest
    from pipeline.training.probes import Probing

    classes: list[str] = []
    if _is_regression(config, list(rows.targets.values())):
        target_N = _numbers(config, rows)
    else:
        names, target_N = np.unique(list(rows.targets.values()), return_inverse=True)
        classes = [str(name) for name in names]
    if len(np.unique(target_N)) < 2:
        raise UserError(f"{config.table}: all records have the same target; nothing to learn")
    alike = list(rows.clusters.values()) or [sequences[name].decode() for name in rows.targets]
    group_N = np.unique(alike, return_inverse=True)[1]
    digest_N = np.array([digest(sequences[name].decode()) for name in rows.targets], np.uint64)
    return Probing(target_N, classes, group_N, digest_N, config.folds, config.seed)


def run(config: ProbeConfig) -> Result:
    """Write metrics.json: how well a linear probe on vectors does on records that it was not trained on.

    Classes are probed by logistic regression and judged by MCC and AUROC (of more than two classes: MCC over
    all, and the mean AUROC of each against the rest); numbers by ridge regression, Spearman's correlation and
    R2. The strength of the penalty is chosen by cross-validation within the training folds. Beside it are the
    same probes on the shares of letters (``composition``), on those of k-mers (4 bases, 2 residues) and, if
    there is one, on the vectors of an untrained model, on the same folds. Intervals are those of resampled
    records (of classes: of groups that stay together).
    """

    def build(workspace: Workspace) -> None:
        from pipeline.training.probes import in_lines

        rows = _read_table(config, workspace.counts)
        ids, features, sequences = _features(config, rows, workspace.counts)
        rows = rows.only(ids)
        for key in ("rows_without_target", "rows_without_vector"):
            if workspace.counts[key]:
                say(f"{config.table}: {workspace.counts[key]} {key.replace('_', ' ')}, left out")
        probing = _probing(config, rows, sequences)
        metrics, workspace.counts["strengths"] = probing.figures(features)
        workspace.write_json("metrics.json", metrics)
        for line in in_lines(metrics, f"{config.target} of {len(ids)} records"):
            say(line)

    inputs = {"vectors": config.vectors, "table": config.table}
    inputs |= {"untrained": config.untrained} if config.untrained else {}
    inputs |= {f"input{i}": path for i, path in enumerate(config.input)}
    return produce("probe", config, inputs, build)


if __name__ == "__main__":
    from pipeline.cli import main

    main(stage="probe")

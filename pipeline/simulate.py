"""Stage ``simulate``: a small world whose truth is known, in the files that real data would come in."""

from pathlib import Path
from typing import Any

import numpy as np

from pipeline.artifacts import Result, Workspace, produce
from pipeline.attention.contacts import (
    average_product_correction,
    mutual_information,
    precision_at,
    random_precision,
)
from pipeline.attention.motif_files import write_meme
from pipeline.config import SimulateConfig
from pipeline.log import say
from pipeline.worlds import RESIDUES, to_text
from pipeline.worlds import promoters as model
from pipeline.worlds.family import MIN_SEPARATION, evolve, median_identity, sample_contacts, sample_potts
from pipeline.worlds.genome import Feature, genome_bits, sample_genome
from pipeline.worlds.matrices import sample_decoys
from pipeline.worlds.windows import bayes_auroc, kind_counts, windows_table, write_windows

LINE = 60
NOTE = "Everything in this folder is simulated: no sequence, motif or contact in it comes from an organism."


def run(config: SimulateConfig) -> Result:
    """Write a simulated chromosome, labelled promoters, motif matrices and a protein family, and the truth.

    The folder holds genome.fa, genome_features.bed, promoters.tsv, planted.meme, database.meme, family.fa,
    family_contacts.tsv and truth.json. Each part has its own random stream, so that the size of one does not
    change another.
    """
    return produce("simulate", config, {}, lambda workspace: _build(config, workspace))


def _build(config: SimulateConfig, workspace: Workspace) -> None:
    streams = [np.random.default_rng(sequence) for sequence in np.random.SeedSequence(config.seed).spawn(4)]
    parts = (_write_genome, _write_windows, _write_motifs, _write_family)
    truth: dict[str, Any] = {"simulated": True, "note": NOTE, "seed": config.seed}
    for part, rng in zip(parts, streams, strict=True):
        truth |= part(config, workspace, rng)
    workspace.write_json("truth.json", truth)


def _write_fasta(path: Path, records: dict[str, str]) -> None:
    with path.open("w") as file:
        for name, sequence in records.items():
            file.write(f">{name}\n")
            file.writelines(sequence[i : i + LINE] + "\n" for i in range(0, len(sequence), LINE))


def _write_bed(path: Path, features: list[Feature]) -> None:
    rows = (f"simulated_chromosome\t{f.start}\t{f.end}\t{f.name}\t0\t{f.strand}\n" for f in features)
    path.write_text("".join(rows))


def _write_genome(config: SimulateConfig, workspace: Workspace, rng: np.random.Generator) -> dict[str, Any]:
    genome = sample_genome(config.genome_length, rng)
    _write_fasta(workspace.path / "genome.fa", {"simulated_chromosome": to_text(genome.codes)})
    _write_bed(workspace.path / "genome_features.bed", genome.features)
    genes = sum(f.kind == "gene" for f in genome.features)
    workspace.counts |= {"genome_bases": len(genome.codes), "genes": genes}
    bits = genome_bits(genome)
    say(
        f"simulated chromosome: {len(genome.codes):,} bases, {genes} genes; true entropy "
        f"{bits['entropy_bits_per_base']:.3f} bits per base given the genes, "
        f"{bits['composition_bits_per_base']:.3f} by base composition alone"
    )
    return bits


def _write_windows(config: SimulateConfig, workspace: Workspace, rng: np.random.Generator) -> dict[str, Any]:
    rows = windows_table(config.promoters, config.window, rng)
    write_windows(workspace.path / "promoters.tsv", rows)
    workspace.counts["windows"] = kind_counts(config.promoters)
    best = bayes_auroc(rows)
    kinds = ", ".join(f"{kind} {value:.3f}" for kind, value in best["by_kind"].items())
    say(f"simulated promoters: best possible (Bayes) AUROC on the test split {best['overall']:.3f} ({kinds})")
    return {
        "bayes_auroc": best,
        "window_kinds": kind_counts(config.promoters),
        "boxes": {name: model.box_matrix(name).tolist() for name in model.CONSENSUS},
        "consensus": model.CONSENSUS,
        "spacers": model.SPACERS,
        "wrong_spacers": model.WRONG_SPACERS,
        "start_distances": model.START_DISTANCES,
        "background": model.BACKGROUND.tolist(),
        "sources": model.SOURCES,
    }


def _write_motifs(config: SimulateConfig, workspace: Workspace, rng: np.random.Generator) -> dict[str, Any]:
    planted = {name: model.box_matrix(name) for name in model.CONSENSUS}
    decoys = sample_decoys(config.decoy_motifs, rng)
    for file, matrices in (("planted.meme", planted), ("database.meme", planted | decoys)):
        sites = dict.fromkeys(matrices, config.promoters)
        write_meme(workspace.path / file, matrices, sites, model.BACKGROUND, note=NOTE)
    workspace.counts["decoy_motifs"] = len(decoys)
    return {"planted_motifs": list(planted), "decoy_motifs": len(decoys)}


def _write_family(config: SimulateConfig, workspace: Workspace, rng: np.random.Generator) -> dict[str, Any]:
    contacts = sample_contacts(config.family_length, rng)
    states_NL = evolve(config.family_sequences, sample_potts(config.family_length, contacts, rng), rng)
    names = (f"simulated_family_{n:04d}" for n in range(len(states_NL)))
    records = {name: to_text(row, RESIDUES) for name, row in zip(names, states_NL, strict=True)}
    _write_fasta(workspace.path / "family.fa", records)
    table = "".join(f"{i + 1}\t{j + 1}\n" for i, j in contacts)
    (workspace.path / "family_contacts.tsv").write_text("i\tj\n" + table)
    workspace.counts |= {"family_sequences": len(states_NL), "family_contacts": len(contacts)}
    truth_LL = np.zeros((config.family_length, config.family_length), bool)
    truth_LL[tuple(np.transpose(contacts))] = True
    known_LL = np.ones_like(truth_LL)
    scores_LL = average_product_correction(mutual_information(states_NL))
    found = precision_at(scores_LL, truth_LL, known_LL, min_separation=MIN_SEPARATION)
    identity = median_identity(states_NL, rng)
    say(
        f"simulated family: {len(contacts)} contacts of {config.family_length} sites; corrected mutual "
        f"information finds them with precision {found:.2f} at L; median identity {identity:.2f}"
    )
    return {
        "family_contacts": len(contacts),
        "family_mi_precision_at_L": found,
        "family_random_precision": random_precision(truth_LL, known_LL, MIN_SEPARATION),
        "family_median_identity": identity,
    }


if __name__ == "__main__":
    from pipeline.cli import main

    main(stage="simulate")

"""The schemas of the stages that make and read sequences: a small world, a corpus, negatives."""

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from pipeline.settings.sections import Alphabet, Fraction, LettersConfig, Positive, StageConfig


class SimulateConfig(StageConfig):
    """Make a small world whose truth is known: a genome, promoters with decoys, a protein family."""

    genome_length: Annotated[int, Field(ge=20_000)] = 600_000
    """bases of the simulated bacterial chromosome"""
    promoters: Annotated[int, Field(ge=50)] = 6000
    """labelled promoter windows; as many background windows, decoys among them"""
    window: Annotated[int, Field(ge=64)] = 81
    """bases of a labelled window (start site at base 61)"""
    family_sequences: Annotated[int, Field(ge=2)] = 2000
    """members of the protein family"""
    family_length: Annotated[int, Field(ge=20)] = 60
    """residues of each member (aligned, without gaps)"""
    decoy_motifs: Annotated[int, Field(ge=0)] = 200
    """matrices in the motif database beside the planted ones"""


class PrepareConfig(StageConfig):
    """Read sequence files, check and clean them, drop duplicates, split them: a corpus."""

    input: list[Path] = []
    """files, folders or globs: FASTA, FASTQ, GenBank, EMBL, A3M, Stockholm, CSV, TSV, Parquet, plain or
    compressed; with genome: BED, narrowPeak, GFF, GTF or VCF"""
    classes: dict[str, Path] = {}
    """labelled input: class name = file, the first class is label 0"""
    test_input: list[Path] = []
    """records for the test split alone; whatever is too close to them leaves training and validation"""
    genome: Path | None = None
    """FASTA that the intervals of the input are cut out of"""
    feature: str | None = None
    """intervals: only features of this type (GFF, GTF)"""
    anchor: Literal["start", "end", "center"] | None = None
    """intervals: cut around this base, on the strand of the interval (default: the whole interval)"""
    upstream: Annotated[int, Field(ge=0)] = 0
    """intervals: bases before the anchor or interval"""
    downstream: Annotated[int, Field(ge=0)] = 0
    """intervals: bases after the anchor or interval"""
    circular: list[str] = []
    """records of the genome whose ends join: windows may run over the origin (* for all)"""
    alphabet: Alphabet = "dna"
    """letters that sequences are made of"""
    letters: LettersConfig = LettersConfig()
    aligned: bool = False
    """keep gaps: every record is a row of one alignment"""
    sequence_column: str = "sequence"
    """tables: column that holds the sequence"""
    id_column: str = "id"
    """tables: column that holds the identifier (row numbers where absent)"""
    label_column: str | None = None
    """tables: column that holds the class"""
    header: bool = True
    """tables: the first line names the columns; if false, they are called column_1, column_2, ..."""
    split_column: str | None = None
    """tables: column with train, validation or test; otherwise records are split as split_by says"""
    keep_columns: list[str] = []
    """tables: further columns carried through to the corpus"""
    split_by: Literal["auto", "sequence", "record", "chromosome", "block", "cluster", "file"] = "auto"
    """what stays together: equal sequences, records, chromosomes, blocks that share no repeat, or clusters of
    similar sequences (auto: block where block is given, else sequence); or file: splits are given, by files
    called train, dev (val, valid, validation) and test, as in GUE's folders"""
    validation: Fraction = 0.05
    """share of what is split that is held out for validation"""
    test: Fraction = 0.05
    """share of what is split that is held out for testing"""
    validation_names: list[str] = []
    """records or chromosomes for validation, by name, instead of a share"""
    test_names: list[str] = []
    """records or chromosomes for testing, by name, instead of a share"""
    block: Positive | None = None
    """cut records into blocks of this many letters (genomes)"""
    buffer: Annotated[int, Field(ge=0)] = 512
    """letters cut off a block where it borders on another split; at least the context of the model"""
    repeat: Annotated[int, Field(ge=16)] = 100
    """blocks that share an exact repeat of this many bases, on either strand, stay together"""
    cluster_with: Literal["kmers", "mmseqs2"] = "kmers"
    """similar sequences are found by the k-mers they share, or by MMseqs2, which has to be on the PATH"""
    cluster_kmer: Annotated[int, Field(ge=3)] | None = None
    """kmers: DNA that shares one stretch of this many bases is similar (default 30); proteins: 5"""
    identity: Annotated[float, Field(gt=0, le=1)] = 0.5
    """proteins, mmseqs2: smallest identity of sequences that are similar"""
    coverage: Annotated[float, Field(gt=0, le=1)] = 0.8
    """proteins, mmseqs2: smallest share of both sequences that is alike"""
    strandless: bool = False
    """DNA: a sequence and its reverse complement are the same thing: one of the two is a duplicate"""
    min_length: Positive = 1
    """shorter records are dropped and counted"""
    max_unknown: Fraction = 0.5
    """records (or blocks) with a larger share of N, or of X and gaps, are dropped and counted"""
    deduplicate: bool = True
    """drop exact duplicates, counted"""
    on_bad_record: Literal["error", "skip"] = "error"
    """a record with bad letters, qualities or coordinates: stop, or drop it and count it"""
    duplicate_ids: Literal["error", "rename"] = "error"
    """records with the id of an earlier one: stop, or name them id_2, id_3, ... and count it"""


class NegativesConfig(StageConfig):
    """Make negatives for given positives: matched windows of a genome, or shuffled positives."""

    positives: Annotated[list[Path], Field(min_length=1)]
    """FASTA, CSV, TSV or other sequence files; with genome also intervals: BED, narrowPeak, GFF, GTF, VCF"""
    kind: Literal["genome", "shuffled", "partly_shuffled"] = "genome"
    """windows of genome that are like the positives in length, GC content and repeats; positives shuffled so
    that all pairs of neighbours stay; positives with 12 of 20 pieces replaced by random bases"""
    ratio: Positive = 1
    """negatives for each positive"""
    sequence_column: str = "sequence"
    """tables: column that holds the sequence"""
    id_column: str = "id"
    """tables: column that holds the identifier (row numbers where absent)"""
    genome: Path | None = None
    """FASTA that windows are taken from; lower-case letters are repeats"""
    circular: list[str] = []
    """records of the genome whose ends join: features and positives may run over the origin (* for all)"""
    anchor: Literal["start", "end", "center"] | None = None
    """intervals: positives are cut around this base, on the strand of the interval (default: all of it)"""
    upstream: Annotated[int, Field(ge=0)] = 0
    """intervals: bases before the anchor or interval"""
    downstream: Annotated[int, Field(ge=0)] = 0
    """intervals: bases after the anchor or interval"""
    feature: str = "gene"
    """use only features of this type, in every GFF and GTF file"""
    annotation: Path | None = None
    """GFF, GTF or BED with genes: where windows are allowed to lie, and the column stratum"""
    where: Literal["any", "intergenic", "coding", "antisense"] = "any"
    """windows that overlap no gene on either strand, lie inside one on the same strand, or inside one on the
    other strand alone"""
    starts: Path | None = None
    """GFF, GTF or BED with what windows keep away from: the start of each interval, on its strand (default:
    those of annotation)"""
    away: Positive = 500
    """bases from a window to every start and to every positive, at least"""
    gc_tolerance: Fraction = 0.02
    """largest difference of a window from its positive in the share of G and C, where tries have such one"""
    repeat_tolerance: Fraction = 0.1
    """the same of lower-case letters, if the genome has any and the positive is found in it"""
    tries: Positive = 5000
    """windows looked at for each negative, at most"""
    on_bad_record: Literal["error", "skip"] = "error"
    """a record with bad letters or coordinates: stop, or leave it out and count it"""
    duplicate_ids: Literal["error", "rename"] = "error"
    """sequences with the id of an earlier one: stop, or name them id_2, id_3, ... and count it"""

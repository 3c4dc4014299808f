"""Groups of settings that the schemas of stages are made of."""

from pathlib import Path
from typing import Annotated, Any, Literal, get_origin

from pydantic import BaseModel, ConfigDict, Field, ValidationInfo, field_validator

Fraction = Annotated[float, Field(ge=0, le=1)]
Positive = Annotated[int, Field(gt=0)]
Alphabet = Literal["dna", "protein"]


class Section(BaseModel):
    """A group of settings; unknown keys are errors."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True, allow_inf_nan=False)

    @field_validator("*", mode="before")
    @classmethod
    def _no_surprise(cls, value: Any, info: ValidationInfo) -> Any:
        """Take one path or name as a list of one, and no truth value as the number 0 or 1."""
        kind = cls.model_fields[info.field_name or ""].annotation
        if isinstance(value, bool) and kind is not bool:
            raise ValueError("true and false are no values of this key")
        return [value] if get_origin(kind) is list and isinstance(value, str | Path) else value


class StageConfig(Section):
    """What every stage takes."""

    output: Path
    """folder to write; it appears complete or not at all"""
    seed: Annotated[int, Field(ge=0)] = 0
    """seed of everything random in this stage"""
    name: str | None = None
    """name shown in logs and in the report (default: the output folder's)"""


class ScanConfig(Section):
    """How a genome is read by a classifier, and which of its places are called start sites."""

    window: Positive | None = None
    """bases of a window (default: those that the classifier was trained on, if it says so)"""
    offset: Annotated[int, Field(ge=0)] | None = None
    """bases of a window before its start site (default: what the classifier says, or else the middle)"""
    stride: Positive = 10
    """bases from one window to the next"""
    strandless: bool = False
    """average the log-odds of both strands; otherwise each strand is scored and called by itself"""
    circular: list[str] = []
    """records of the genome whose ends join: windows run over the origin (* for all)"""
    regions: Path | None = None
    """BED or GFF: read only windows that lie wholly in one of these intervals, whatever their strand"""
    apart: Positive = 50
    """a call has no higher score on its strand within so many bases"""
    threshold: Fraction | None = None
    """probability above which a local maximum is a call (default: chosen by false_calls_per_kb)"""
    false_calls_per_kb: Annotated[float, Field(gt=0)] = 0.1
    """calls, on both strands, for every 1000 bases of a shuffled sample of the genome, at most"""
    table: bool = False
    """also write windows.tsv, with a row for every window and strand"""
    starts: Path | None = None
    """annotated start sites to compare with (BED, GFF, GTF): the first base of each interval on its strand"""
    feature: str | None = None
    """starts: only features of this type (GFF, GTF; needed there)"""
    genes: Path | None = None
    """gene annotation (GFF, GTF: features of type gene; BED): the strand of calls is compared with it"""


class LettersConfig(Section):
    """What becomes of letters that a model does not read as they are.

    The saved tokenizer does the same; what is refused in files, and stops, are <unk> there.
    """

    case: Literal["fold", "soft-mask"] = "fold"
    """lower case: fold it to upper case, or fold it and remember it as soft mask (repeats)"""
    uracil: Literal["t", "error"] = "t"
    """DNA: U becomes T, or is refused"""
    ambiguous: Literal["n", "error"] = "n"
    """DNA: the IUPAC codes R Y S W K M B D H V become N, or are refused"""
    xle: Literal["x", "l", "error"] = "x"
    """proteins: J (leucine or isoleucine) becomes X or L, or is refused"""
    rare: Literal["keep", "x"] = "keep"
    """proteins: B Z U O keep tokens of their own, or become X"""
    stops: Literal["error", "split"] = "error"
    """proteins: a * before the end is refused, or cuts the record (one at the end is always stripped)"""
    gaps: Literal["error", "remove"] = "error"
    """- and . outside of alignments are refused, or removed (corpus column gaps says where)"""


class ModelConfig(Section):
    """Shape of the network."""

    architecture: Literal["strand", "factored"] = "strand"
    """strand: rotary Transformer encoder; factored: factored attention for one aligned family"""
    hidden_size: Positive = 128
    num_hidden_layers: Positive = 4
    num_attention_heads: Positive = 4
    intermediate_size: Positive | None = None
    """width of the feed-forward part (default: 8/3 of hidden_size, in multiples of 8)"""
    norm: Literal["rmsnorm", "layernorm"] = "rmsnorm"
    norm_bias: Literal["all", "layers", "none"] = "all"
    """which layer norms have a bias: all, those of the layers, or none"""
    norm_placement: Literal["pre", "post"] = "pre"
    """norms before attention and feed-forward part, or after them (as in BERT)"""
    activation: Literal["swiglu", "gelu"] = "swiglu"
    use_bias: bool = False
    qk_norm: bool = False
    """normalise queries and keys"""
    qk_norm_over: Literal["head", "model"] = "head"
    """over each head's channels, or over all"""
    residual_scale: Annotated[float, Field(gt=0)] = 1.0
    """factor of what each layer adds"""
    positions: Literal["rotary", "sinusoidal", "none"] = "rotary"
    rope_theta: Annotated[float, Field(gt=1)] | None = None
    """base of the rotary angles (default: 10,000, or that of start_from); larger for longer contexts"""
    sliding_window: Positive | None = None
    """tokens seen to either side (default: all), except in every global_every-th layer"""
    global_every: Positive = 3
    """one layer of so many sees all tokens, the first among them"""
    token_dropout: bool = False
    """show masks as zeros and scale the other tokens for it, as ESM-2 does"""
    lm_head: Literal["linear", "dense"] = "linear"
    """dense: a layer with GELU and layer norm before the decoder, as ESM-2 has"""
    tie_word_embeddings: bool = True
    coupling_decay: Annotated[float, Field(ge=0)] = 0.05
    """factored: L2 penalty of couplings, in multiples of columns - 1, as CCMpred has it (0.2 there)"""


class MaskingConfig(Section):
    """Which bases (or residues) are hidden, and how."""

    fraction: Annotated[float, Field(gt=0, lt=1)] = 0.15
    """share of bases hidden"""
    run: Positive | None = None
    """bases hidden together, or their mean (default: the tokenizer's k)"""
    run_lengths: Literal["fixed", "geometric"] = "fixed"
    """runs all as long as run, or of random length, geometric with that mean"""
    replace: Fraction = 0.1
    """share of hidden runs that show random bases instead of a mask"""
    keep: Fraction = 0.1
    """share of hidden runs that show the true bases"""
    soft_mask_weight: Fraction = 1.0
    """weight in the loss of targets that are soft-masked (the corpus needs letters.case: soft-mask)"""


class OptimizerConfig(Section):
    """The optimizer and its learning-rate schedule."""

    method: Literal["adamw", "muon"] = "adamw"
    """muon: orthogonalised updates for the matrices of the layers, AdamW for all else"""
    learning_rate: Annotated[float, Field(gt=0)] = 1e-3
    """peak learning rate"""
    weight_decay: Annotated[float, Field(ge=0)] = 0.01
    beta1: Fraction = 0.9
    beta2: Fraction = 0.98
    epsilon: Annotated[float, Field(gt=0)] = 1e-8
    clip: Annotated[float, Field(gt=0)] = 1.0
    """largest gradient norm"""
    warmup: Annotated[int, Field(ge=0)] = 50
    """steps from zero to the peak"""
    schedule: Literal["cosine", "linear", "wsd"] = "cosine"
    """after the warm-up: a cosine, a straight line, or the peak until a straight decay at the end (wsd: a run
    that is lengthened goes on from before the decay, exactly as if it had been longer from the start)"""
    decay: Fraction = 0.1
    """wsd: share of the steps that the decay takes"""
    final: Fraction = 0.0
    """share of the peak that the last step has"""


class LoraConfig(Section):
    """Low-rank updates of the layers' matrices, instead of the matrices themselves."""

    rank: Positive = 8
    alpha: Annotated[float, Field(gt=0)] = 16
    """updates are multiplied by alpha / rank"""
    dropout: Annotated[float, Field(ge=0, lt=1)] = 0.0


class MixtureConfig(Section):
    """How much of what is read comes from each of several data sets."""

    weights: list[Annotated[float, Field(gt=0)]] = []
    """one number for each data set, in their order (default: their sizes)"""
    temperature: Annotated[float, Field(ge=1)] = 1.0
    """shares are weights ^ (1 / temperature): the larger, the more alike"""

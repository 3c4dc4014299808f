"""The accounts of a corpus: what was read is kept, dropped or removed, in records, rows and letters."""

from typing import Any

import numpy as np

from pipeline.sequences.alphabets import case_separates
from pipeline.sequences.draft import Draft
from pipeline.sequences.intake import Tally
from pipeline.sequences.records import Notes
from pipeline.sequences.splits import SPLITS

RECORDS = (
    "empty",
    "bad_records",
    "bad_letters",
    "unknown_chromosome",
    "outside_genome",
    "reference_mismatch",
)
ROWS = (
    "too_short",
    "all_unknown",
    "too_unknown",
    "too_close_to_test",
    "duplicates",
    "conflicting_labels",
    "within_buffers",
)
REMOVED = {
    "gaps_removed": "gaps",
    "insertions_removed": "insertions",
    "stops_cut": "inner_stops",
    "stops_stripped": "final_stops",
}
BUFFERS = "buffers"


def corpus_counts(draft: Draft, tally: Tally, names: list[str], code_N: np.ndarray) -> dict[str, Any]:
    """Return the manifest's counts, whose accounts close exactly.

    In letters, ``read`` is ``kept`` plus all that was ``dropped`` plus all that was ``removed`` from rows. In
    records, ``read`` is ``taken`` plus the dropped ``records``: those that cannot be read or have bad
    letters. What was taken was cut into rows, one for a record that is neither in blocks nor very long:
    ``taken`` rows are ``kept`` rows plus the dropped ``rows``. Letters are those that the formats hold:
    blanks are none (``blanks_removed``), and overlapping k-mers (``kmers_joined``) count as the sequence that
    they are of. A damaged record counts with the letters that are known of it, an interval that has no window
    with none.

    Args:
        draft: the rows, split.
        tally: what was read.
        names: the classes, if there are any.
        code_N: number of the class of each row.
    """
    notes, kept_N, letters_N = draft.notes, draft.kept, draft.letters_N
    unread = {reason: notes[reason] for reason in RECORDS}
    before = sum(notes.letters[reason] for reason in RECORDS if reason != "bad_letters")
    counts = {
        "generated_ids": 0,
        "renamed_ids": 0,
        **{k: notes[k] for k in sorted(notes) if k not in (*RECORDS, *ROWS, BUFFERS) and notes[k]},
        "read": {
            "records": tally.records - tally.refused + sum(unread.values()),
            "letters": tally.letters + before,
        },
        "taken": {"records": tally.records - tally.refused, "rows": tally.rows},
        "kept": {"rows": int(kept_N.sum()), "letters": int(letters_N[kept_N].sum())},
        "dropped": dropped(notes),
        "removed": _removed(notes, tally),
        "changed": {kind: tally.changed[kind] for kind in sorted(tally.changed) if kind not in REMOVED},
        "records_cut": 0 if draft.config.block else draft.records_cut(),
        "soft_masked_fraction": round(tally.lower_case / max(tally.letters, 1), 6),
        "splits": _splits(draft, names, code_N),
    }
    if names:
        counts["case_separates_labels"] = case_separates(tally.case_labels, tally.case_shares)
    return counts


def dropped(notes: Notes) -> dict[str, dict[str, int]]:
    """Return by reason how many records (or rows) were dropped, and their letters."""
    reasons = [(reason, "records") for reason in RECORDS] + [(reason, "rows") for reason in ROWS]
    return {
        reason: {unit: notes[reason], "letters": notes.letters[reason]}
        for reason, unit in reasons
        if notes[reason]
    }


def dropped_line(notes: Notes) -> str:
    """Return what was dropped as a line for people, or nothing."""
    parts = []
    for reason, number in dropped(notes).items():
        letters = f" ({number['letters']} letters)" if number["letters"] else ""
        parts.append(f"{notes[reason]} {reason.replace('_', ' ')}{letters}")
    return "dropped: " + ", ".join(parts) if parts else ""


def _removed(notes: Notes, tally: Tally) -> dict[str, int]:
    """Return the letters that were taken out of rows which were not dropped for it, by kind."""
    removed = {name: tally.changed[kind] for kind, name in REMOVED.items()}
    return {name: number for name, number in (removed | {BUFFERS: notes[BUFFERS]}).items() if number}


def _splits(draft: Draft, names: list[str], code_N: np.ndarray) -> dict[str, dict[str, Any]]:
    """Return rows, letters and labels of every split that has rows."""
    splits = {}
    for code, split in enumerate(SPLITS):
        of_N = draft.split_N == code
        if of_N.any():
            splits[split] = {"rows": int(of_N.sum()), "letters": int(draft.letters_N[of_N].sum())}
            if names:
                labels = np.bincount(code_N[of_N], minlength=len(names)).tolist()
                splits[split]["labels"] = dict(zip(names, labels, strict=True))
    return splits

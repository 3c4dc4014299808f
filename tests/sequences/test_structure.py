import gzip

import numpy as np
import pytest
from Bio.SeqUtils import seq3

from pipeline.errors import UserError
from pipeline.sequences.structure import align_to, contact_map, identities, read_structure


def atom(serial, name, residue, chain, number, xyz, *, icode="", altloc="", occupancy=1.0, record="ATOM"):
    x, y, z = xyz
    element = "SE" if name == "SE" else name[0]
    return (
        f"{record:<6}{serial:>5} {' ' + name if len(name) < 4 else name:<4}{altloc:1}{residue:>3} {chain}"
        f"{number:>4}{icode:1}   {x:8.3f}{y:8.3f}{z:8.3f}{occupancy:6.2f}{0:6.2f}          {element:>2}\n"
    )


def residue(name, number, *, chain="A", cb=True, x=None, first=1, **options):
    """Backbone and C-beta of a residue; C-beta stands 1.5 above C-alpha, residues are 3.8 apart."""
    x = 3.8 * number if x is None else x
    places = {"N": (x - 1.2, 0.5, 0), "CA": (x, 0, 0), "C": (x + 1.2, 0.5, 0)}
    if cb:
        places["CB"] = (x, 0, 1.5)
    return "".join(
        atom(first + n, atom_name, name, chain, number, xyz, **options)
        for n, (atom_name, xyz) in enumerate(places.items())
    )


def seqres(names, chain="A"):
    return f"SEQRES   1 {chain} {len(names):>4}  {' '.join(names)}\n"


@pytest.fixture
def write(tmp_path):
    def writer(text, name="x.pdb"):
        path = tmp_path / name
        path.write_text(text)
        return path

    return writer


EIGHT = ["ALA", "CYS", "ASP", "GLU", "PHE", "GLY", "HIS", "ILE"]


def gap_pdb(shift=0):
    numbered = [(name, n + 1 + shift) for n, name in enumerate(EIGHT) if n not in (3, 4, 5)]
    return seqres(EIGHT) + "".join(residue(name, n, cb=name != "GLY") for name, n in numbered) + "END\n"


@pytest.mark.parametrize("shift", [0, 40, -5])
def test_unresolved_residues_are_unknown(write, shift):
    structure = read_structure(write(gap_pdb(shift)))
    assert structure.sequence == "ACDEFGHI"
    assert structure.resolved.tolist() == [True] * 3 + [False] * 3 + [True] * 2
    assert structure.numbers == [str(n + shift) if n not in (4, 5, 6) else "" for n in range(1, 9)]
    contacts, known = contact_map(structure)
    assert contacts.shape == known.shape == (8, 8)
    assert known[0, 7]
    assert not known[0, 3]
    assert not contacts[3].any()
    assert contacts[0, 2] == (7.6 < 8)
    assert not contacts[2, 6]


def test_repeats_beside_a_gap_go_where_their_numbers_say(write):
    names = ["GLY", "ALA", "ALA", "ALA", "ALA", "ALA", "LYS"]
    text = (
        seqres(names)
        + residue("GLY", 1, cb=False)
        + residue("ALA", 5)
        + residue("ALA", 6)
        + residue("LYS", 7)
    )
    structure = read_structure(write(text))
    assert structure.resolved.tolist() == [True, False, False, False, True, True, True]


def test_modified_residues_water_and_glycine(write):
    text = (
        residue("MET", 1)
        + residue("GLY", 2, cb=False)
        + residue("MSE", 3, record="HETATM")
        + residue("LYS", 4)
        + atom(90, "O", "HOH", "A", 101, (0, 0, 9), record="HETATM")
        + residue("GLU", 102, record="HETATM")
        + atom(99, "CA", "CA", "A", 103, (0, 0, 9), record="HETATM")
    )
    structure = read_structure(write(text))
    assert structure.sequence == "MGMK"
    np.testing.assert_allclose(structure.coords_cb[1], [7.6, 0, 0])
    np.testing.assert_allclose(structure.coords_cb[2], [11.4, 0, 1.5])
    contacts, known = contact_map(structure)
    assert contacts.shape == (4, 4)
    assert known.all()
    assert not contacts.diagonal().any()


def test_distance_is_between_c_betas_and_exclusive(write):
    structure = read_structure(
        write(residue("ALA", 1, x=0) + residue("ALA", 2, x=8) + residue("ALA", 3, x=15.9))
    )
    contacts, _ = contact_map(structure, 8.0)
    assert contacts.tolist() == [[False] * 3, [False, False, True], [False, True, False]]
    assert contact_map(structure, 8.01)[0][0, 1]


def test_insertion_codes_keep_their_order(write):
    names = ["ALA", "CYS", "ASP", "GLU"]
    text = residue("ALA", 52) + residue("CYS", 52, icode="A", x=201) + residue("ASP", 52, icode="B", x=205)
    text += residue("GLU", 53)
    for head in ("", seqres(names)):
        structure = read_structure(write(head + text))
        assert structure.sequence == "ACDE"
        assert structure.numbers == ["52", "52A", "52B", "53"]
        assert structure.coords_cb[1, 0] == pytest.approx(201)


def test_highest_occupancy_and_first_model(write):
    first = atom(1, "CA", "ALA", "A", 1, (0, 0, 0), altloc="A", occupancy=0.3)
    first += atom(2, "CA", "ALA", "A", 1, (5, 0, 0), altloc="B", occupancy=0.7)
    mutant = atom(3, "CA", "SER", "A", 2, (8, 0, 0), altloc="A", occupancy=0.6)
    mutant += atom(4, "CA", "THR", "A", 2, (9, 0, 0), altloc="B", occupancy=0.4)
    second = atom(1, "CA", "ALA", "A", 1, (50, 0, 0))
    text = f"MODEL        1\n{first}{mutant}ENDMDL\nMODEL        2\n{second}ENDMDL\nEND\n"
    structure = read_structure(write(text))
    assert structure.sequence == "AS"
    assert structure.coords_cb[:, 0].tolist() == [5, 8]


def test_chain_must_be_chosen_among_several(write):
    path = write(residue("ALA", 1) + residue("CYS", 1, chain="B") + atom(9, "P", "DA", "C", 1, (0, 0, 0)))
    with pytest.raises(UserError, match="chains A, B; choose one with --chain"):
        read_structure(path)
    assert read_structure(path, "B").sequence == "C"
    with pytest.raises(UserError, match=r"no chain 'C' \(author naming\); the chains are A, B"):
        read_structure(path, "C")


CIF_ATOMS = """data_test
loop_
_atom_site.group_PDB
_atom_site.id
_atom_site.type_symbol
_atom_site.label_atom_id
_atom_site.label_alt_id
_atom_site.label_comp_id
_atom_site.label_asym_id
_atom_site.label_entity_id
_atom_site.label_seq_id
_atom_site.pdbx_PDB_ins_code
_atom_site.Cartn_x
_atom_site.Cartn_y
_atom_site.Cartn_z
_atom_site.occupancy
_atom_site.B_iso_or_equiv
_atom_site.auth_seq_id
_atom_site.auth_asym_id
_atom_site.pdbx_PDB_model_num
ATOM 1 C CA . ALA A 1 1 ? 0.0 0.0 0.0 1.0 0.0 50 L 1
ATOM 2 C CA . ALA A 1 4 ? 9.0 0.0 0.0 1.0 0.0 53 L 1
ATOM 3 C CA . GLY A 1 5 ? 12.0 0.0 0.0 1.0 0.0 54 L 1
ATOM 4 C CA . TRP B 2 1 ? 0.0 9.0 0.0 1.0 0.0 1 H 1
HETATM 5 O O . HOH C 3 . ? 0.0 9.0 9.0 1.0 0.0 201 L 1
#
"""
CIF_SCHEME = """loop_
_pdbx_poly_seq_scheme.asym_id
_pdbx_poly_seq_scheme.entity_id
_pdbx_poly_seq_scheme.seq_id
_pdbx_poly_seq_scheme.mon_id
_pdbx_poly_seq_scheme.pdb_seq_num
_pdbx_poly_seq_scheme.auth_seq_num
_pdbx_poly_seq_scheme.pdb_strand_id
_pdbx_poly_seq_scheme.pdb_ins_code
A 1 1 ALA 50 50 L .
A 1 2 ALA 51 ?  L .
A 1 3 ALA 52 ?  L .
A 1 4 ALA 53 53 L .
A 1 5 GLY 54 54 L .
B 2 1 TRP 1  1  H .
#
"""


@pytest.mark.parametrize("name", ["x.cif", "no_extension"])
def test_mmcif_chains_are_the_authors(write, name):
    path = write(CIF_ATOMS + CIF_SCHEME, name)
    structure = read_structure(path, "L")
    assert (structure.chain, structure.label_chain) == ("L", "A")
    assert structure.sequence == "AAAAG"
    assert structure.numbers == ["50", "", "", "53", "54"]
    assert structure.resolved.tolist() == [True, False, False, True, True]
    with pytest.raises(UserError, match="did you mean label chain A, which is author chain L"):
        read_structure(path, "A")


def test_mmcif_without_sequence_record(write):
    structure = read_structure(write(CIF_ATOMS, "x.cif"), "L")
    assert structure.sequence == "AXXAG"
    assert structure.numbers == ["50", "", "", "53", "54"]


def test_compressed_files(tmp_path):
    path = tmp_path / "x.pdb.gz"
    path.write_bytes(gzip.compress(gap_pdb().encode()))
    assert read_structure(path).sequence == "ACDEFGHI"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "no PDB structure|no protein chain"),
        (atom(1, "P", "DA", "A", 1, (0, 0, 0)), "no protein chain"),
        (seqres(["ALA", "CYS"]) + residue("ALA", 1) + residue("TRP", 2), "W2 has coordinates but no place"),
    ],
)
def test_files_that_cannot_be_used(write, text, message):
    with pytest.raises(UserError, match=message):
        read_structure(write(text))


def test_missing_file(tmp_path):
    with pytest.raises(UserError, match="no such file"):
        read_structure(tmp_path / "none.pdb")


PROTEIN = "MKTAYIAKQRQISFVKSHFSRQLEERLGLIEVQ"


@pytest.fixture
def protein(write):
    return read_structure(write("".join(residue(seq3(a).upper(), n + 1) for n, a in enumerate(PROTEIN))))


def test_alignment_follows_insertions_deletions_and_ends(protein):
    sequence = "XX" + PROTEIN[3:15].lower() + "GGG" + PROTEIN[15:20] + PROTEIN[22:30]
    index = align_to(sequence, protein)
    expected = [-1, -1, *range(3, 15), -1, -1, -1, *range(15, 20), *range(22, 30)]
    placed = np.array(expected) >= 0
    assert np.mean(index[placed] == np.array(expected)[placed]) > 0.9
    assert len(set(index[index >= 0])) == (index >= 0).sum()
    assert align_to(PROTEIN, protein).tolist() == list(range(len(PROTEIN)))
    assert align_to(PROTEIN[5:12], protein).tolist() == list(range(5, 12))
    assert align_to("M" + PROTEIN[12:24], protein).tolist() == list(range(11, 24))
    assert identities(PROTEIN[:20], protein) == 20


def test_letters_outside_the_matrix_align(protein):
    assert align_to(PROTEIN.replace("M", "U"), protein)[1:].tolist() == list(range(1, len(PROTEIN)))


@pytest.mark.parametrize("other", ["WWPWGWCWHWPWGWCWHWNWPWGWCWHW", "GGGGGG"])
def test_another_protein_is_refused(protein, other):
    with pytest.raises(UserError, match="does not match chain A"):
        align_to(other, protein)


def test_numbers_tell_what_is_missing_where_the_chain_is_broken(write):
    text = residue("ALA", 3) + residue("CYS", 7) + residue("ASP", 8) + residue("GLU", 60, x=3.8 * 9)
    structure = read_structure(write(text))
    assert structure.sequence == "AXXXCDE"
    assert structure.numbers == ["3", "", "", "", "7", "8", "60"]
    assert structure.resolved.tolist() == [True] + [False] * 3 + [True] * 3
    _, known = contact_map(structure)
    assert known.shape == (7, 7)
    assert known.sum() == 16


def test_what_is_not_plain_is_counted_and_said(write):
    moving = atom(1, "CA", "ALA", "A", 1, (0, 0, 0), altloc="A", occupancy=0.3)
    moving += atom(2, "CA", "ALA", "A", 1, (3, 0, 0), altloc="B", occupancy=0.7)
    model = moving + residue("MSE", 2, record="HETATM") + residue("GLY", 4, cb=False)
    text = f"MODEL        1\n{model}ENDMDL\nMODEL        2\n{model}ENDMDL\nEND\n"
    structure = read_structure(write(text))
    assert structure.sequence == "AMXG"
    assert structure.counts == {"models": 2, "modified": 1, "alternatives": 1, "without_cb": 1}
    told = structure.describe()
    for words in ("chain A: 4 residues; 1 unresolved", "1 modified", "1 in alternative", "1 without C-beta"):
        assert words in told
    assert told.endswith("first of 2 models")
    plain = read_structure(write(residue("ALA", 1) + residue("GLY", 2, cb=False)))
    assert plain.describe() == "chain A: 2 residues"


def test_both_names_of_a_chain_are_said(write):
    structure = read_structure(write(CIF_ATOMS + CIF_SCHEME, "x.cif"), "L")
    assert structure.describe().startswith("chain L (author), A (label): 5 residues; 2 unresolved")


def test_mmcif_insertion_codes_are_the_authors(write):
    atoms = CIF_ATOMS.replace("ALA A 1 4 ? 9.0", "ALA A 1 4 A 9.0").replace(" 53 L 1", " 50 L 1")
    structure = read_structure(write(atoms, "x.cif"), "L")
    assert structure.numbers == ["50", "50A", "54"]
    assert structure.sequence == "AAG"


def test_a_sequence_of_the_seen_residues_fits_around_the_missing_ones(write):
    seen = [n for n in range(len(PROTEIN)) if n not in (15, 16, 17)]
    structure = read_structure(write("".join(residue(seq3(PROTEIN[n]).upper(), n + 1) for n in seen)))
    assert structure.sequence == PROTEIN[:15] + "XXX" + PROTEIN[18:]
    assert align_to("".join(PROTEIN[n] for n in seen), structure).tolist() == seen
    assert align_to(PROTEIN, structure).tolist() == list(range(len(PROTEIN)))

from __future__ import annotations

import json
import logging
from pathlib import Path

import pytest

from harness.errors import CorpusError
from harness.node.build import build_corpus, list_corpora, show_corpus, tie
from harness.node.corpus import Passage, load_corpus
from harness.node.recipes import recipe, recipe_names
from harness.node.sources import Asked, Gold

LEADS = "wikipedia-leads"


@pytest.fixture(scope="module")
def leads(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a corpus of 200 real Wikipedia leads, cut small."""
    folder = tmp_path_factory.mktemp("built") / "leads"
    build_corpus(LEADS, out=folder, chunk_tokens=64, overlap_tokens=8, limit=200, progress=False)
    return folder


def test_real_leads_are_built(leads: Path) -> None:
    """Counts, sizes and the digest of a built corpus agree with its files."""
    corpus = load_corpus(leads, verify=True)

    assert (corpus.manifest.documents, corpus.manifest.chunk_tokens) == (200, 64)
    assert max(passage.tokens for passage in corpus.passages) <= 64
    assert len({passage.doc_id for passage in corpus.passages}) == 200
    assert {question.doc_id for question in corpus.questions} <= {passage.doc_id for passage in corpus.passages}
    assert corpus.manifest.licence == "CC BY-SA 4.0 (text)"


def test_building_again_is_a_no_op(leads: Path) -> None:
    """The same build finds the same digest and touches no file."""
    before = {path.name: path.stat().st_mtime_ns for path in leads.iterdir()}
    digest = load_corpus(leads).manifest.digest
    again, _ = build_corpus(LEADS, out=leads, chunk_tokens=64, overlap_tokens=8, limit=200, progress=False)

    assert again.manifest.digest == digest
    assert {path.name: path.stat().st_mtime_ns for path in leads.iterdir()} == before


def test_other_chunks_are_another_corpus(leads: Path, tmp_path: Path) -> None:
    """The digest tells a corpus cut otherwise."""
    corpus, _ = build_corpus(LEADS, out=tmp_path / "c", chunk_tokens=32, limit=200, progress=False)

    assert corpus.manifest.digest != load_corpus(leads).manifest.digest


def test_every_gold_passage_belongs_to_its_article(leads: Path) -> None:
    """A template question's gold is the whole of the article it was made from."""
    corpus = load_corpus(leads)
    of_document: dict[str | None, set[str]] = {}
    for passage in corpus.passages:
        of_document.setdefault(passage.doc_id, set()).add(passage.id)

    assert [q.id for q in corpus.questions if set(q.gold_ids) != of_document[q.doc_id]] == []


def test_a_folder_is_built(tmp_path: Path) -> None:
    """A user's folder becomes a corpus of its name; what it left out is not counted."""
    notes = tmp_path / "notes"
    notes.mkdir()
    (notes / "a.md").write_text("# Pump\nIt pumps.\n\n## Care\nOil it weekly.\n")
    (notes / "b.txt").write_text("")
    corpus, folder = build_corpus(str(notes), out=tmp_path / "out", progress=False)

    assert (corpus.manifest.name, corpus.manifest.documents, folder) == ("notes", 1, tmp_path / "out")
    assert [passage.title for passage in corpus.passages] == ["Pump", "Pump: Care"]
    assert {question.question: question.gold_ids for question in corpus.questions} == {
        "What is Pump about?": ("a-md#0",),
        "What does Pump say about Care?": ("a-md#1",),
    }


def test_what_was_left_out_is_said(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Each file left out is one warning."""
    (tmp_path / "a.txt").write_text("Alpha.")
    (tmp_path / "b.txt").write_text("")
    with caplog.at_level(logging.WARNING):
        build_corpus(str(tmp_path), out=tmp_path / "built", progress=False)

    assert caplog.messages == ["b.txt left out: no text in it"]


def test_a_recipe_file_builds_local_rows(tmp_path: Path) -> None:
    """A recipe of one's own names files beside itself, whatever folder it is called from."""
    rows = [{"t": "Nile", "b": "The Nile is long.", "q": "How long?", "a": "Long"}]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "mine.toml").write_text(
        'kind = "datasets"\nlicence = "CC0"\n'
        '[documents]\nfiles = "rows.jsonl"\ncolumns = { title = "t", text = "b" }\n'
        '[questions]\nfiles = "rows.jsonl"\ncolumns = { question = "q", reference = "a", gold = "t" }\n'
    )
    corpus, _ = build_corpus(str(tmp_path / "mine.toml"), out=tmp_path / "built", progress=False)

    assert (corpus.manifest.name, corpus.manifest.licence) == ("mine", "CC0")
    assert [(q.question, q.reference, q.gold_ids) for q in corpus.questions] == [("How long?", "Long", ("nile#0",))]


@pytest.mark.parametrize(
    ("evidence", "gold"),
    [(None, ("d#0", "d#1")), ("second", ("d#1",)), ("nowhere", ("d#0", "d#1"))],
)
def test_evidence_narrows_gold_to_the_passages_that_hold_it(evidence: str | None, gold: tuple[str, ...]) -> None:
    """Evidence that no passage holds whole leaves all passages of the document gold."""
    passages = [
        Passage(id=f"d#{number}", doc_id="d", title="T", text=f"The {word} one.", tokens=4)
        for number, word in enumerate(("first", "second"))
    ]
    tied = tie([Asked(id="q", question="?", gold=(Gold("d", evidence),))], passages)

    assert tied[0].gold_ids == gold


def test_gold_in_two_documents_belongs_to_neither_alone() -> None:
    """doc_id is set only where one document answers."""
    passages = [Passage(id=f"{name}#0", doc_id=name, title="", text="x", tokens=1) for name in ("a", "b")]
    tied = tie([Asked(id="q", question="?", gold=(Gold("a"), Gold("b")))], passages)

    assert (tied[0].gold_ids, tied[0].doc_id) == (("a#0", "b#0"), None)


def test_an_unknown_name_suggests_the_nearest() -> None:
    """A slip of the pen is met with the right name."""
    with pytest.raises(CorpusError, match="'hotpot' is no recipe, folder or recipe file: try hotpotqa"):
        build_corpus("hotpot", progress=False)


def test_a_file_in_place_of_a_folder_is_told_what_to_do(tmp_path: Path) -> None:
    """A data file alone has no column map; the error says where to write one."""
    (tmp_path / "rows.jsonl").write_text("{}")
    with pytest.raises(CorpusError, match="write a recipe"):
        build_corpus(str(tmp_path / "rows.jsonl"), progress=False)


@pytest.mark.parametrize("text", ["kind = ", 'kind = "sql"', 'kind = "datasets"\nchunk_tokens = "many"', "x = 1"])
def test_a_broken_recipe_is_refused(tmp_path: Path, text: str) -> None:
    """A recipe that is not TOML, of no kind, or with sizes that are no numbers is one CorpusError naming it."""
    (tmp_path / "mine.toml").write_text(text)
    with pytest.raises(CorpusError, match=r"mine\.toml"):
        recipe(str(tmp_path / "mine.toml"))


def test_every_recipe_names_source_licence_and_sizes() -> None:
    """The recipes that come with ragload are whole."""
    names = recipe_names()

    assert names == ["hotpotqa", "multihop-rag", "rag-mini-wikipedia", "scifact", "squad", "wikipedia-leads"]
    assert [name for name in names if not (recipe(name).licence and recipe(name).settings.get("source"))] == []


def test_recipes_and_built_corpora_are_listed(leads: Path) -> None:
    """A list has a row for each recipe, then for each built folder, broken ones called so."""
    broken = leads.parent / "broken"
    broken.mkdir()
    (broken / "manifest.json").write_text("{}")
    rows = {(row["name"], row["state"]): row["documents"] for row in list_corpora(leads.parent)}

    assert rows == {(name, "recipe"): None for name in recipe_names()} | {
        ("broken", "broken"): None,
        (LEADS, "built"): 200,
    }


def test_a_corpus_shows_examples(leads: Path) -> None:
    """Shown are the manifest, the spread of passage sizes and a few rows, all ready for JSON."""
    shown = json.loads(json.dumps(show_corpus(leads, examples=3)))

    assert (shown["manifest"]["documents"], len(shown["passages"]), len(shown["questions"])) == (200, 3, 3)
    assert sorted(shown["tokens_per_passage"]) == ["max", "min", "p10", "p50", "p90"]

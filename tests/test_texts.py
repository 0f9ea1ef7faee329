"""Texts: hashed words that everybody makes alike, their files, families, every method, engine, page and export."""

from __future__ import annotations

import json
import zlib
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import crad
from crad.config import Experiment
from crad.data.kinds.text import TextPreprocessor
from crad.data.tokenizer import Tokenizer, words_of
from crad.errors import ConfigError, CradError
from crad.federation.context import build_run_context
from crad.inference.engine import TeacherEngine
from crad.models import FAMILIES, Architecture, InputShape, build_model, estimate_size
from crad.runs.resolution import resolve_experiment
from tests.conftest import change
from tests.test_resume import assert_same_weights, interrupted

SHAPE = InputShape(3, 12, (), "text", vocabulary=300)
TOPICS = {
    "sport": "match goal team coach league striker season",
    "money": "bank shares profit market euro trader loan",
    "space": "rocket orbit moon probe star launch crew",
}
FILLER = "the a of and today said in with new on"


def sentence(rng: np.random.Generator, topic: str) -> str:
    own, filler = TOPICS[topic].split(), FILLER.split()
    return " ".join([*rng.choice(own, 2), *rng.choice(filler, rng.integers(1, 9))])


@pytest.fixture(scope="session")
def news(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two papers of ninety headlines; one is in a separate test file too, with a comma, a quote and two lines."""
    rng, folder = np.random.default_rng(3), tmp_path_factory.mktemp("news")
    for name, count in (("news", 180), ("later", 30)):
        lines = ["paper,topic,text"]
        for row in range(count):
            topic = list(TOPICS)[row % 3]
            lines.append(f'{"ab"[row // 3 % 2]},{topic},"{sentence(rng, topic)}, ""so""\nthey say <b>"')
        (folder / f"{name}.csv").write_text("\n".join(lines) + "\n")
    return folder / "news.csv"


@pytest.fixture(scope="session")
def papers(news: Path) -> Experiment:
    """The two papers as clients with different families; a round takes milliseconds."""
    return Experiment(
        dataset=str(news),
        label="topic",
        site="paper",
        text="text",
        partition="natural",
        clients=2,
        vocabulary=512,
        text_length=12,
        models=("bag", "text-cnn"),
        width=0.25,
        rounds=2,
        batch_size=16,
        optimizer="adamw",
        lr=0.03,
        proxy_size=12,
        device="cpu",
        workers=1,
        seed=4,
    )


def refused(call) -> str:
    with pytest.raises(CradError) as refusal:
        call()
    assert "\n" not in str(refusal.value)
    return str(refusal.value)


# --- the tokenizer


def test_words_are_lower_case_without_marks_and_a_chinese_letter_is_a_word():
    assert words_of("Don't panic: £5 in the STRASSE, Straße-bahn_2!") == [
        "don", "t", "panic", "5", "in", "the", "strasse", "strasse", "bahn", "2",
    ]  # fmt: skip
    assert words_of("\ufb01ne \uff21\uff22\uff23\uff11 cafe\u0301 co\xadoperate") == [
        "fine",
        "abc1",
        "café",
        "cooperate",
    ]
    assert words_of("東京へ 行く。 हिन्दी में।  안녕 하세요 😀😀 — “ok”…") == [
        "東", "京", "へ", "行", "く", "हिन्दी", "में", "안녕", "하세요", "😀", "😀", "ok",
    ]  # fmt: skip
    assert words_of(" \n\t.,;-") == []


def test_ids_are_fixed_for_ever():
    """crc32("123456789") is 0xCBF43926 = 3,421,780,262 in every table of it; over 8,191 that leaves 6,394."""
    assert 3_421_780_262 % 8191 == 6394
    assert Tokenizer().id_of("123456789") == 1 + 6394
    # The first example of the page: made once, and the same on every machine and in every version from then on.
    made = Tokenizer(vocabulary=8192, length=6).ids(["Shares fall: shares, SHARES!", ""])
    assert made.tolist() == [[5276, 6610, 5276, 5276, 0, 0], [0, 0, 0, 0, 0, 0]]
    assert made.dtype == np.int64
    assert made[0, 0] == 1 + zlib.crc32(b"shares") % 8191


def test_a_long_text_is_cut_and_a_short_one_filled_up():
    tokenizer = Tokenizer(vocabulary=300, length=3)
    ids = tokenizer.ids(["one two three four", "one"])
    assert ids.tolist() == [[tokenizer.id_of(word) for word in ("one", "two", "three")], [tokenizer.id_of("one"), 0, 0]]


@given(st.lists(st.text(), max_size=5), st.integers(2, 10_000), st.integers(1, 20))
def test_any_text_becomes_ids_of_the_vocabulary_and_words_come_before_padding(texts, vocabulary, length):
    ids = Tokenizer(vocabulary, length).ids(texts)
    assert ids.shape == (len(texts), length)
    assert ((ids >= 0) & (ids < vocabulary)).all()
    for row, text in zip(ids, texts, strict=True):
        assert (row > 0).sum() == min(length, len(words_of(text)))
        assert (np.diff((row > 0).astype(int)) <= 0).all()


def test_an_unknown_tokenizer_is_refused():
    with pytest.raises(ConfigError, match=r"unknown tokenizer 'wordpiece'.*Known: words-1"):
        Tokenizer(name="wordpiece")


# --- families


@pytest.mark.parametrize("name", FAMILIES["text"])
def test_every_family_reads_ids_and_runs_as_a_teacher_to_the_same_logits(name):
    model = build_model(Architecture(name), **vars(SHAPE), seed=1)
    ids = torch.randint(0, 300, (90, 12), generator=torch.Generator().manual_seed(0))
    ids[0] = 0  # a text without a word
    ids[1, 1:] = 0
    logits = model.eval()(ids)
    assert logits.shape == (90, 3)
    assert logits.isfinite().all()
    with torch.no_grad():
        teacher = TeacherEngine(device="cpu").prepare(model, key=name)
        assert torch.allclose(teacher(ids), logits, atol=1e-5)
        assert torch.allclose(model(ids[:2]), logits[:2], atol=1e-5), "a text's neighbours in the batch say nothing"
    longer = build_model(Architecture(name), **{**vars(SHAPE), "in_channels": 20}, seed=1).eval()
    weights = model.state_dict()
    if "place" in weights:
        weights["place"] = torch.cat([weights["place"], torch.ones(8, weights["place"].shape[1])])
    longer.load_state_dict(weights)
    with torch.no_grad():
        padded = torch.nn.functional.pad(ids, (0, 8))
        assert torch.allclose(longer(padded), logits, atol=1e-5), "padding says nothing"


@pytest.mark.parametrize("name", FAMILIES["text"])
def test_its_size_is_known_before_it_is_built_and_width_counts(name):
    model = build_model(Architecture(name), **vars(SHAPE), seed=0)
    small, usual = estimate_size(Architecture(name, 0.25), SHAPE), estimate_size(Architecture(name), SHAPE)
    assert usual.parameters == sum(parameter.numel() for parameter in model.parameters())
    assert small.parameters < usual.parameters


def test_a_family_for_another_kind_is_refused_with_those_that_fit(papers, tiny):
    with pytest.raises(
        ConfigError,
        match="model 'mlp' is for data of kind 'table', and this is of kind 'text': choose bag, text-cnn, text-trans",
    ):
        crad.run(change(papers, models=("bag", "mlp")))
    with pytest.raises(ConfigError, match="model 'bag' is for data of kind 'text', and this is of kind 'image'"):
        crad.run(change(tiny, models=("bag",)))


def test_attention_refuses_longer_texts_than_it_can_look_at(papers):
    words = "looks at up to 512 tokens, text_length is 600: choose bag or text-cnn"
    with pytest.raises(ConfigError, match=words):
        crad.run(change(papers, models=("text-transformer",), text_length=600))


class OwnNetwork(torch.nn.Module):
    """Counts words: what a user's own network is given."""

    def __init__(self, num_classes: int, length: int) -> None:
        super().__init__()
        self.length, self.words = length, torch.nn.EmbeddingBag(512, num_classes, padding_idx=0)

    def forward(self, ids):
        assert ids.dtype == torch.int64
        assert ids.shape[1] == self.length == 12
        return self.words(ids)


def test_a_network_of_ones_own_is_given_token_ids(papers):
    result = crad.run(change(papers, rounds=1), models=[OwnNetwork, "bag"])
    assert isinstance(result.models[0].module, OwnNetwork)


# --- inputs changed on purpose


def test_a_mixed_text_is_ones_beginning_and_anothers_end():
    preprocessor = TextPreprocessor(torch.device("cpu"))
    own = torch.tensor([[1, 2, 3, 4, 0, 0], [1, 2, 3, 4, 0, 0], [1, 2, 3, 4, 5, 6], [0, 0, 0, 0, 0, 0]])
    others = torch.tensor([[7, 8, 0, 0, 0, 0], [7, 8, 9, 10, 0, 0], [7, 8, 9, 10, 11, 12], [7, 8, 0, 0, 0, 0]])
    share = torch.tensor([0.5, 1.0, 0.5, 0.5])
    made = preprocessor.mix(own, others, share, generator=torch.Generator())
    assert made.tolist() == [[1, 2, 8, 0, 0, 0], [1, 2, 3, 4, 0, 0], [1, 2, 3, 10, 11, 12], [8, 0, 0, 0, 0, 0]]


def test_a_strongly_changed_text_lacks_some_of_its_words():
    ids = torch.arange(1, 1001).reshape(10, 100)
    made = TextPreprocessor(torch.device("cpu")).change_strongly(ids, generator=torch.Generator().manual_seed(0))
    kept = made == ids
    assert ((made == 0) | kept).all()
    assert 0.6 < kept.float().mean() < 0.8


@pytest.mark.parametrize("distill_augment", ["mixup", "strong"])
def test_students_and_teachers_meet_on_changed_texts(papers, distill_augment):
    assert crad.run(change(papers, distill_augment=distill_augment)).summary["global_accuracy"] > 40


# --- files and arrays


def test_one_file_is_split_and_two_files_are_not(news, papers):
    one = build_run_context(papers).data.dataset
    assert (one.train_samples.shape, one.test_samples.shape) == ((144, 12), (36, 12))
    assert one.site_names == ("a", "b")
    two = build_run_context(change(papers, test_data=str(news.with_name("later.csv")))).data.dataset
    assert (two.train_samples.shape, two.test_samples.shape) == ((180, 12), (30, 12))
    assert set(two.texts) == {ids.tobytes() for ids in two.test_samples}


def test_a_table_may_have_its_test_rows_in_another_file(tmp_path):
    for name, shift in (("train", 0), ("test", 1000)):
        rows = [f"{row + shift},{'yes' if row % 2 else 'no'}" for row in range(30)]
        (tmp_path / f"{name}.csv").write_text("\n".join(["age,ill", *rows]) + "\n")
    experiment = Experiment(dataset=str(tmp_path / "train.csv"), label="ill", test_data=str(tmp_path / "test.csv"))
    dataset = build_run_context(change(experiment, clients=1, proxy_size=0, device="cpu")).data.dataset
    assert dataset.test_samples[:, 0].min() == 1000
    assert len(dataset.train_labels) == 30


def test_several_columns_are_one_text(tmp_path):
    path = tmp_path / "t.csv"
    lines = ["title;body;topic", *(f"Big {word};so it is;{word}" for word in ["x", "y"] * 10)]
    path.write_text("\n".join(lines) + "\n")
    experiment = Experiment(dataset=str(path), label="topic", text=["title", "body"], clients=1, proxy_size=0)
    dataset = build_run_context(experiment).data.dataset
    words = Tokenizer().ids(["big x so it is"])[0]
    assert (dataset.train_samples == words).all(axis=1).any()
    assert dataset.details["columns"] == ["title", "body"]


DEFECTS = {
    "no such column": (["topic,body", "a,x", "b,y"], "lacks column 'text', which holds texts; has topic, body"),
    "no text at all": (["topic,text", "a,", "b, "], "column 'text' is empty: there is nothing to read"),
    "one class": (["topic,text", "a,x", "a,y"], "label column 'topic' has one class only, 'a'"),
    "no label": (["topic,text", ",x", "a,y"], "1 rows have no label in column 'topic', the first in line 2"),
    "open quote": (["topic,text", 'a,"x', "b,y"], "is no CSV (unexpected end of data): is a quote open?"),
}


@pytest.mark.parametrize("defect", DEFECTS)
def test_a_defect_is_one_line(tmp_path, defect):
    lines, words = DEFECTS[defect]
    path = tmp_path / "t.csv"
    path.write_text("\n".join(lines) + "\n")
    experiment = Experiment(dataset=str(path), label="topic", text="text")
    assert words in refused(lambda: build_run_context(experiment))


def test_a_byte_order_mark_quoted_lines_and_empty_texts_are_understood(tmp_path):
    rows = [f'{"ab"[row % 2]},"word{row % 4},\n""twice"""' for row in range(18)]
    path = tmp_path / "t.csv"
    path.write_bytes("\ufefftopic,text\n".encode() + ("\n".join([*rows, "a,", "b,NA"]) + "\n").encode())
    dataset = crad.data.load_dataset(str(path), table=options(), seed=1)
    samples = np.concatenate([dataset.train_samples, dataset.test_samples])
    assert (samples > 0).sum(axis=1).tolist().count(2) == 18
    assert sorted((samples > 0).sum(axis=1).tolist())[:2] == [0, 1]  # nothing, and the word "na"


def options(**more):
    from crad.data.readers.table_file import TableOptions

    return TableOptions(label="topic", text=("text",), **more)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"categories": "paper"}, "categories is for tables without texts; of this one only text is read"),
        ({"resize": 16}, "resize is for images"),
        ({"seconds": 2}, "seconds is for recordings"),
        ({"text": "topic"}, "column 'topic' is both text and label: name another one"),
        ({"text": None, "ignore": "text", "vocabulary": 300}, "vocabulary is for texts: name the column that holds"),
        ({"text": None, "site": None}, "or learn from texts alone with text=text"),
        ({"dataset": "digits"}, "text names columns of a table (.csv, .tsv, .parquet), and digits is none"),
        ({"dataset": "digits", "text": None, "label": None, "site": None, "test_data": "x.csv"}, "test_data is for t"),
        ({"test_data": "nowhere.csv"}, "nowhere.csv: no such file"),
        ({"method": "fedgd"}, "method 'fedgd' paints images only, and this is a text"),
        ({"attack": "backdoor", "attackers": 1}, "attack 'backdoor' puts a patch into images, and this is a text"),
    ],
)
def test_what_is_not_for_texts_is_said_in_one_line(papers, changes, words, tmp_path):
    experiment = change(papers, **{"vocabulary": 8192, "text_length": 64, **changes})
    assert words in refused(lambda: crad.run(experiment, output=tmp_path / "run"))
    assert not (tmp_path / "run").exists()


def test_lists_frames_and_hugging_face_columns_of_texts_are_one_data_set():
    pandas = pytest.importorskip("pandas")
    rng = np.random.default_rng(0)
    topics = list(TOPICS) * 10
    texts = [sentence(rng, topic) for topic in topics]
    plain = crad.Dataset.from_arrays(texts, topics, texts[:9], topics[:9], site=[1, 2] * 15, vocabulary=300)
    assert repr(plain) == "<Dataset arrays: 30 training and 9 test texts 64, 3 classes>"
    assert plain.site_names == ("1", "2")
    frame = pandas.DataFrame({"topic": topics, "text": texts})
    framed = crad.Dataset.from_frame(frame, "topic", text="text", test=frame[:9], vocabulary=300)
    splits = {"train": {"text": texts, "topic": topics}, "test": {"text": texts[:9], "topic": topics[:9]}}
    hugging = crad.Dataset.from_huggingface(splits, image="text", label="topic")
    arrays = crad.Dataset.from_arrays(np.array(texts), topics, frame["text"], topics, vocabulary=300)
    for other in (framed, arrays):
        np.testing.assert_array_equal(plain.train_samples, other.train_samples)
    assert hugging.kind == "text"
    assert "expected texts: write an empty one as ''" in refused(
        lambda: crad.Dataset.from_arrays(["a", None], [0, 1], ["a", "b"], [0, 1])
    )
    assert "vocabulary and text_length are for texts, and x_train holds none" in refused(
        lambda: crad.Dataset.from_arrays(np.eye(4), [0, 1] * 2, np.eye(4), [0, 1] * 2, vocabulary=300)
    )


def test_a_gap_in_a_frame_is_an_empty_text():
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame({"topic": ["a", "b"] * 6, "text": ["x", None, float("nan"), pandas.NA] * 3})
    data = crad.Dataset.from_frame(frame, "topic", text="text")
    assert int((data.train_samples > 0).sum() + (data.test_samples > 0).sum()) == 3


# --- a federation


GOLDEN = {"loss": [0.3628, 0.3717], "global": [48.61, 58.33]}


def test_golden_run(papers):
    """The two papers with CRAD, as first measured; see test_golden.py for what a change of it means."""
    rounds = crad.run(papers).rounds
    losses = [sum(client["losses"]["total"] for client in line["clients"]) / 2 for line in rounds]
    assert losses == pytest.approx(GOLDEN["loss"], rel=0.02)
    assert [line["global_accuracy"] for line in rounds] == pytest.approx(GOLDEN["global"], abs=3.0)


@pytest.mark.parametrize(
    "method", ["uniform", "crad-plus", "fedmd", "msfkd", "dfml", "fedmkd", "experts", "committee", "centralized"]
)
def test_every_method_learns_from_texts(papers, method):
    rounds = 6 if method == "experts" else 3  # whose students begin when half of them are over
    result = crad.run(change(papers, method=method, rounds=rounds, committee=False))
    assert result.summary["global_accuracy"] > 45
    assert result.models[1].predict("rocket to the moon").tolist()[0] in TOPICS


@pytest.mark.parametrize("attack", ["noise", "label-flip", "sign-flip", "collude"])
def test_attacks_that_need_no_picture_work(papers, attack):
    result = crad.run(change(papers, partition="iid", site=None, clients=3, attack=attack, attackers=1, rounds=1))
    assert result.summary["honest"]["global_accuracy"] > 0


def test_models_and_clients_follow_from_the_data(papers):
    usual = Experiment()
    found = resolve_experiment(change(papers, models=usual.models, clients=usual.clients))
    assert found.models == ("bag", "text-cnn", "text-transformer")
    assert found.clients == 2


def test_two_processes_give_the_same_bits(papers, tmp_path, forked_workers):
    experiment = change(papers, models=("bag", "text-transformer"))
    crad.run(experiment, output=tmp_path / "one")
    crad.run(change(experiment, engine="processes", workers=2), output=tmp_path / "two")
    assert_same_weights(tmp_path / "one", tmp_path / "two")


@pytest.fixture(scope="module")
def finished(papers, tmp_path_factory):
    path = tmp_path_factory.mktemp("finished") / "whole"
    return crad.run(change(papers, rounds=3), output=path)


def test_a_run_goes_on_where_it_stopped_and_its_page_shows_sentences(papers, finished, tmp_path):
    interrupted(finished.experiment, tmp_path / "stopped", after=1)
    crad.run(finished.experiment, output=tmp_path / "stopped", resume=True)
    assert_same_weights(finished.directory, tmp_path / "stopped")
    inspection = json.loads((finished.directory / "inspection.json").read_text())
    assert inspection["images"][0]["text"].endswith(', "so"\nthey say <b>')
    assert inspection["words"] == {"one": "text", "several": "texts"}
    page = (finished.directory / "report.html").read_text()
    assert "(144 training and 36 test texts): 2 clients, natural" in page
    assert "they say \\u003cb>" in page, "a text cannot end the script that it stands in"
    assert "they say <b>" not in page
    loaded = crad.load(finished.directory)
    texts = ["the rocket", "a bank loan", ""]
    np.testing.assert_array_equal(loaded.models[1].predict_proba(texts), finished.models[1].predict_proba(texts))
    assert loaded.committee(client=0).predict(texts).shape == (3,)
    assert loaded.committee(client=0, size=1).members


def test_a_long_text_is_shown_cut_with_a_cue():
    text = "word " * 300
    data = crad.Dataset.from_arrays(["a", "b"] * 5, [0, 1] * 5, [text, "b"], [0, 1])
    shown = data.kind_of_data.picture(data, data.test_samples[0])["text"]
    assert shown.startswith("word word")
    assert shown.endswith(" … (900 more characters)")


def test_texts_reach_no_other_process(papers):
    from crad.engines.shared_arrays import arrays_of, assemble_dataset, describe_dataset
    from crad.runs.records import data_fingerprint

    dataset = build_run_context(papers).data.dataset
    described = json.dumps(describe_dataset(dataset))
    assert "rocket" not in described
    again = assemble_dataset(json.loads(described), arrays_of(dataset))
    assert data_fingerprint(again) == data_fingerprint(dataset)
    assert again.details == dataset.details


@pytest.fixture(scope="module")
def graph(finished, tmp_path_factory):
    """The first client's model as a graph."""
    pytest.importorskip("onnxruntime")
    return finished.export("onnx", client=0, path=tmp_path_factory.mktemp("graph") / "model.onnx")


def test_an_exported_model_reads_texts_and_says_how(finished, graph, tmp_path, crad_command):
    texts = ["the rocket, today!", "", "a bank loan with profit " * 5]
    files = {"texts.csv": 'text\n"the rocket, today!"\nx\n' + texts[2] + "\n", "texts.txt": "\n".join(texts)}
    for name, content in files.items():
        (tmp_path / name).write_text(content)
    weights = finished.export("safetensors", client=1, path=tmp_path / "model.safetensors")
    for client, path in ((0, graph), (1, weights)):
        model = crad.load_model(path)
        expected = finished.models[client].predict_proba(texts)
        np.testing.assert_allclose(model.predict_proba(texts), expected, atol=1e-5)
        code, out, _ = crad_command("predict", path, tmp_path / "texts.txt", "--json")
        assert code == 0
        said = [row["probabilities"]["space"] for row in json.loads(out)["predictions"]]
        np.testing.assert_allclose(said, expected[:, 1], atol=1e-5)
        code, out, _ = crad_command("predict", path, tmp_path / "texts.csv", "--json")
        assert json.loads(out)["predictions"][0]["probabilities"]["space"] == pytest.approx(expected[0, 1], abs=1e-5)
    assert model.card.details == {"name": "words-1", "vocabulary": 512, "length": 12, "columns": ["text"]}
    (tmp_path / "other.csv").write_text("body,id\nx,1\n")
    code, _, err = crad_command("predict", path, tmp_path / "other.csv")
    assert (code, "lacks column 'text', which holds texts; has body, id" in err) == (2, True)
    for wrong in (np.zeros((2, 5), np.int64), np.zeros((2, 12)), np.full((1, 12), 512)):
        assert refused(lambda wrong=wrong: model.predict(wrong))


def test_the_graph_takes_ids_and_its_metadata_say_how_they_are_made(finished, graph):
    onnxruntime = pytest.importorskip("onnxruntime")
    session = onnxruntime.InferenceSession(str(graph))
    [given_ids] = session.get_inputs()
    assert (given_ids.name, given_ids.type, given_ids.shape[1]) == ("token_ids", "tensor(int64)", 12)
    about = session.get_modelmeta().custom_metadata_map
    sizes = json.loads(about["tokenizer"])
    assert "crc32" in json.loads(about["input"])["made_by"]
    words = [1 + zlib.crc32(word.encode()) % (sizes["vocabulary"] - 1) for word in ("the", "rocket")]
    ids = np.array([words + [0] * (sizes["length"] - 2)])
    [said] = session.run(["probabilities"], {"token_ids": ids})
    np.testing.assert_allclose(said, finished.models[0].predict_proba("The ROCKET!"), atol=1e-5)


def test_a_committee_of_texts_is_one_graph(papers, tmp_path):
    pytest.importorskip("onnxruntime")
    result = crad.run(change(papers, rounds=1, models=("text-cnn", "text-transformer")))
    together = result.committee(client=0)
    path = result.export("onnx", committee=together, path=tmp_path / "all.onnx")
    texts = ["the rocket", ""]
    np.testing.assert_allclose(crad.load_model(path).predict_proba(texts), together.predict_proba(texts), atol=1e-5)


# --- the command line


def test_a_check_says_what_was_understood(news, crad_command, tmp_path):
    words = ["data", "check", news, "--label", "topic", "--site", "paper", "--text", "text"]
    code, out, err = crad_command(*words, "--text-length", 5, "--vocabulary", 256)
    assert code == 0, err
    assert f"{news}: 180 texts in text" in out
    assert "classes: money 60, space 60, sport 60" in out
    assert "sites: a 90, b 90" in out
    assert "after word 5 and are cut off: raise text_length" in err
    code, out, _ = crad_command(*words, "--json")
    report = json.loads(out)
    assert report["different_words"] == 3 * 7 + 10 + 4  # so, they, say, b
    assert report["longest_words"] == 2 + 8 + 4
    path = tmp_path / "t.csv"
    path.write_text("note,topic,text\n1,a,one two two\n2,b,\n3,a,one two two\n")
    code, out, err = crad_command("data", "check", path, "--text", "text")
    assert (code, "not read: note, topic" in out) == (0, True)
    for said in ("1 texts have no word", "1 texts stand there more than once", "no column is the label yet"):
        assert said in err


def test_words_that_share_an_id_are_counted_by_hand():
    from crad.data.checks.text_check import check_texts
    from crad.data.readers.table_file import parse_csv

    table = parse_csv(b"text,topic\nhello hello hello you,a\nyou and,b\n", where="t.csv")
    only_one = check_texts(table, options(vocabulary=2))  # every word is id 1, and hello is most frequent
    assert only_one.outnumbered_words == pytest.approx(3 / 6)
    assert check_texts(table, options(vocabulary=100_000)).outnumbered_words == 0


def test_the_command_line_has_it_all(news, tmp_path, crad_command):
    words = ["--data", news, "--test-data", news.with_name("later.csv"), "--label", "topic", "--text", "text"]
    more = ["--models", "bag@0.25", "--clients", 2, "--rounds", 1, "--quiet", "--workers", 1, "--proxy-size", 0]
    code, _, err = crad_command(
        "compare", *words, *more, "--methods", "local,crad", "--seeds", "1", "--output", tmp_path / "both"
    )
    assert code == 0, err
    rows = json.loads((tmp_path / "both" / "comparison.json").read_text())["rows"]
    assert [row["name"] for row in rows] == ["local", "crad"]
    code, _, _ = crad_command("explain", next((tmp_path / "both").glob("*crad*")), "--student", 0, "--image", 1)
    assert code == 0
    code, out, err = crad_command("data", "split", *words, "--clients", 2, "--output", tmp_path / "shards")
    assert code == 0, err
    assert "client-0.csv: " in out
    first = (tmp_path / "shards" / "client-0.csv").read_text().splitlines()
    assert set(first[0].split(",")) == {"text", "topic"}
    assert len(first) > 2

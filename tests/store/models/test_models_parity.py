"""Our ids against those of the llama.cpp engine itself, which runs in a process of its own."""

import os
import random
import shutil
import unicodedata
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Protocol

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from store.models.bytes_alphabet import LETTERS
from store.models.pretokenizers import PRE_TOKENIZERS
from store.models.prompt_side import PromptSide, file_side
from store.models.template import Message
from store.models.tokenizer import Tokenizer

CORPUS = (
    "",
    " ",
    "Hello, world!  It's 1234567 o'clock; DON'T we'LL y'all've I'm he'd 12 345.67 $5 -3%",
    "  leading and trailing  ",
    "a\tb\t\tc\r\nd\r\n\r\ne\n\n\nf \n \n  g\n",
    "def f(x):\n    if x:\n\treturn x  # done\n\n\nprint(f(1))\n```py\n```",
    "CamelCaseHTTPServer snake_case_name //path/to/file.txt\n/next <a href='x'>b</a> a+b=c~d^e|f`g",
    "naïve café e\u0301te\u0301 A\u030angström ﬁ ß ŉ ǅ İ \u0131",
    "日本語のテスト。中文\uff0c标点\uff01한국어 시험 ไทย हिन्दी বাংলা",
    "العربية ١٢٣ עברית \u200f\u202b mixed \u202c",
    "👩\u200d👩\u200d👧\u200d👦 🇩🇪 🦜🏽 1️⃣ ½²③ Ⅻ ٣४",
    "x\u00a0y\u2003z\u3000\u2028\u2029\u0085end\u200b\ufeff",
    "<|im_start|>user\n<|im_end|><|endoftext|><s></s>[INST] [/INST]<unk><pad>",
    "0123456789" * 7 + " 1 12 123 1234 12345",
    " " * 700 + "x" + "\n" * 40 + "y" + "\t" * 40,
    "a" * 400 + "é" * 90 + "日" * 90,
    "Türkiye'de Ankara'daki o'rtho's 'tis  1 a\t\t2 \n 3",
    "\x00\x01\x7f\x1b[0m",
)
LONG = ("word after word 123, " * 9_600)[:200_000]
ALPHABET = " \n\t\r'sStTmdDlLrReEvVabcXYZ0123456789.,!?/()_-`$+<=>^~|é\u0301日本ก؀ा½٣🦜\u200d\u00a0\u3000\uff0c。…"
CI = os.environ.get("CI") == "true"


class Engine(Protocol):
    def load(self, path: Path) -> None: ...
    def post(self, route: str, **body: Any) -> Any: ...
    def ids(self, text: str, *, special: bool, begin: bool = False) -> tuple[int, ...]: ...


def strange(seed: object, count: int) -> Iterator[str]:
    """Texts of characters that pre-tokenizers treat each in its own way, and of any others."""
    rng = random.Random(str(seed))
    for _ in range(count):
        if rng.random() < 0.6:
            yield "".join(rng.choices(ALPHABET, k=rng.choice([2, 5, 20, 60])))
        else:
            drawn = (chr(rng.choice([rng.randrange(0x20, 0xD800), rng.randrange(0xE000, 0x30000)])) for _ in range(60))
            # Which class a character has that was not assigned yet depends on the year of the tables.
            yield "".join(char for char in drawn if unicodedata.category(char) != "Cn")


def telling(parts: dict[str, Any]) -> dict[str, Any]:
    """A byte-level vocabulary that joins most neighbours, so that nearly every place where text is split shows."""
    rng = random.Random(4)
    plain = [LETTERS[byte] for byte in b" \n\r\t'sStTmdlLreEvab0123.,!?/-(<"]
    wild = [(rng.choice(LETTERS), rng.choice(LETTERS)) for _ in range(9_000)]
    pairs = list(dict.fromkeys([(one, other) for one in plain for other in plain] + wild))
    rng.shuffle(pairs)
    pairs.append((LETTERS[0x20] * 2, LETTERS[0x20]))
    tokens = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", *LETTERS, *(one + other for one, other in pairs))
    metadata = parts["metadata"]
    metadata["tokenizer.ggml.tokens"] = (8, tokens)
    metadata["tokenizer.ggml.token_type"] = (5, (3, 3, 3) + (1,) * (len(tokens) - 3))
    metadata["tokenizer.ggml.merges"] = (8, tuple(f"{one} {other}" for one, other in pairs))
    parts["tensors"]["token_embd.weight"] = ((32, len(tokens)), 2)
    return parts


def test_every_known_way_to_split_is_the_engines(
    engine: Engine, tmp_path: Path, parts: dict[str, Any], write: Callable[..., Path]
) -> None:
    parts = telling(parts)
    wrong = []
    seen = set()
    for name, way in PRE_TOKENIZERS.items():
        parts["metadata"]["tokenizer.ggml.pre"] = (8, name)
        path = write(tmp_path / "pre.gguf", parts)
        engine.load(path)
        tokenizer = Tokenizer.from_gguf(path)
        # Names for the same way need only be shown to be that.
        texts = (*CORPUS, *strange(name, 5 if way.patterns in seen else 60))
        seen.add(way.patterns)
        wrong += [
            (name, text) for text in texts if tokenizer.encode(text, special=False) != engine.ids(text, special=False)
        ]
    assert wrong == []


def test_the_vocabulary_above_shows_splits(tmp_path: Path, parts: dict[str, Any], write: Callable[..., Path]) -> None:
    """Every two ways to split that are not the same are told apart by some text of the corpus."""
    parts = telling(parts)
    found: dict[tuple[str, ...], tuple[tuple[int, ...], ...]] = {}
    for name, way in PRE_TOKENIZERS.items():
        if way.patterns not in found:
            parts["metadata"]["tokenizer.ggml.pre"] = (8, name)
            tokenizer = Tokenizer.from_gguf(write(tmp_path / "pre.gguf", parts))
            texts = (*CORPUS, *strange("apart", 100))
            found[way.patterns] = tuple(tokenizer.encode(text, special=False) for text in texts)
    assert len(set(found.values())) == len(found) > 15


EXTRA = (("<|user|>", 3), ("[INST]", 4), ("<|im_end|>", 3), ("ab[", 4), ("  ", 4), ("\n\n", 4), ("<unused0>", 5))
SPM_TEXTS = (
    *CORPUS,
    "hello the  world\n\nthe banana aaaaaaa aaaaaaaaaaaaa 10000100",
    "<|user|> hello<|im_end|>\n  the[INST]  x ab[INST]ab[ </s>the<s>",
    "   \n\n\n   日本語",
)
SETTINGS: dict[str, dict[str, tuple[int, Any]]] = {
    "as usual": {},
    "no space in front": {"tokenizer.ggml.add_space_prefix": (7, False)},
    "no bos": {"tokenizer.ggml.add_bos_token": (7, False)},
    "swallows space": {"general.name": (8, "Phi-3 small")},
}
SPM_ALPHABET = "  \n\tabcdehilnorstw ABC0123<>/|[]日本語éz😀ñ"


def spelled_control(tokenizer: Tokenizer, ids: tuple[int, ...]) -> bool:
    """The engine made a control token, or a byte out of its name, of a person's letters."""
    return bool(set(ids) & tokenizer.control) or 13 in ids


@pytest.mark.parametrize("case", SETTINGS)
@pytest.mark.parametrize("scores", [12, 100_000])
def test_sentencepiece_ids_are_the_engines(
    case: str,
    scores: int,
    engine: Engine,
    tmp_path: Path,
    spm: Callable[..., dict[str, Any]],
    write: Callable[..., Path],
) -> None:
    more = (*EXTRA, ("<|endoftext|>", 3)) if "swallows" in case else EXTRA
    parts = spm(scores=scores, more=more)
    parts["metadata"] |= SETTINGS[case]
    path = write(tmp_path / "spm.gguf", parts)
    engine.load(path)
    side = file_side("spm", path)
    tokenizer = side.tokenizer
    assert isinstance(tokenizer, Tokenizer)
    plain = 0

    def same(text: str) -> None:
        nonlocal plain
        begin = (tokenizer.bos,) if tokenizer.adds_bos else ()
        assert (*begin, *tokenizer.encode(text, special=True)) == engine.ids(text, special=True, begin=True)
        theirs = engine.ids(text, special=False)
        if not spelled_control(tokenizer, theirs):
            plain += 1
            assert tokenizer.encode(text, special=False) == theirs

    @settings(max_examples=60, deadline=None, database=None, derandomize=CI)
    @given(text=st.text(alphabet=SPM_ALPHABET, max_size=60) | st.text(max_size=60))
    def any_text(text: str) -> None:
        same(text.replace("<0x0A>", ""))

    for text in SPM_TEXTS:
        same(text)
    any_text()
    assert plain > 60
    assert tokenizer.adds_bos is (case != "no bos")


def test_long_texts_of_sentencepiece(
    engine: Engine, tmp_path: Path, spm: Callable[..., dict[str, Any]], write: Callable[..., Path]
) -> None:
    path = write(tmp_path / "spm.gguf", spm())
    engine.load(path)
    tokenizer = Tokenizer.from_gguf(path)
    for text in (LONG, "a" * 50_000, "the " * 20_000):
        assert tokenizer.encode(text, special=False) == engine.ids(text, special=False)


def test_letters_never_become_a_control_token_here(
    engine: Engine, tmp_path: Path, spm: Callable[..., dict[str, Any]], write: Callable[..., Path]
) -> None:
    """What the engine would do, and why it is fed ids."""
    path = write(tmp_path / "spm.gguf", spm(scores=100_000, seed=2))
    engine.load(path)
    tokenizer = Tokenizer.from_gguf(path)
    text = "x</s>y"
    assert tokenizer.eos in engine.ids(text, special=False)
    ours = tokenizer.encode(text, special=False)
    assert not set(ours) & tokenizer.control
    assert b"".join(map(tokenizer.piece, ours)) == b" x</s>y"
    name = tokenizer.encode("<0x0A>", special=False)
    assert 13 in engine.ids("<0x0A>", special=False), "the line feed"
    assert b"".join(map(tokenizer.piece, name)) == b" <0x0A>"


@pytest.mark.parametrize("kind", ["spm", "bpe"])
def test_pieces_are_the_engines(
    kind: str,
    engine: Engine,
    tmp_path: Path,
    parts: dict[str, Any],
    spm: Callable[..., dict[str, Any]],
    write: Callable[..., Path],
) -> None:
    path = write(tmp_path / "pieces.gguf", spm(more=EXTRA) if kind == "spm" else parts)
    engine.load(path)
    tokenizer = Tokenizer.from_gguf(path)
    for token in range(tokenizer.vocab_size):
        if token not in tokenizer.control:
            shown = engine.post("/detokenize", tokens=[token])["content"]
            assert tokenizer.piece(token).decode("utf-8", "replace") == shown, token
    ids = tokenizer.encode("hello the  \n\n world", special=False)
    assert b"".join(map(tokenizer.piece, ids)).decode() == engine.post("/detokenize", tokens=list(ids))["content"]


VOCABULARIES = {
    "chat": ("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|eot_id|>", "<|eom_id|>", "<think>", "</think>"),
    "code": (
        *("<|endoftext|>", "<s>", "</s>", "<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>", "<|fim_pad|>"),
        *("<|repo_name|>", "<|file_sep|>", "<EOT>"),
    ),
    "parts": (
        *("<|startoftext|>", "<|return|>", "<|end|>", "<|call|>", "<|channel|>", "<|message|>", "<|start|>"),
        *("<|constrain|>", "<|endoftext|>"),
    ),
    "turns": ("<pad>", "<bos>", "<eos>", "<start_of_turn>", "<end_of_turn>", "<turn|>", "<|tool_response>", "</s>"),
    "brackets": ("[BOS]", "[EOS]", "[EOT]", "[PAD]", "<|end_of_text|>", "<end_of_utterance>", "_<EOT>"),
    "deepseek": ("<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>", "<｜User｜>", "<｜Assistant｜>"),  # noqa: RUF001
}


@pytest.mark.parametrize("case", VOCABULARIES)
def test_an_answer_ends_where_the_engine_ends_it(
    case: str, engine: Engine, tmp_path: Path, parts: dict[str, Any], write: Callable[..., Path]
) -> None:
    marks = VOCABULARIES[case]
    metadata = parts["metadata"]
    words = metadata["tokenizer.ggml.tokens"][1][3:]
    metadata["tokenizer.ggml.tokens"] = (8, (*marks, *words))
    metadata["tokenizer.ggml.token_type"] = (5, (3,) * len(marks) + (1,) * len(words))
    metadata["tokenizer.ggml.bos_token_id"] = (4, 0)
    metadata["tokenizer.ggml.eos_token_id"] = (4, 1)
    parts["tensors"]["token_embd.weight"] = ((32, len(marks) + len(words)), 0)
    path = write(tmp_path / "ends.gguf", parts)
    engine.load(path)
    side = file_side("ends", path)
    ends = set()
    for token in range(len(marks) + 20):
        answer = engine.post("/completion", prompt=[20, 30], n_predict=2, temperature=0, logit_bias=[[token, 1e6]])
        if answer["stop_type"] == "eos":
            ends.add(token)
        elif token < len(marks):
            assert side.piece(token).decode() * 2 == answer["content"], marks[token]
    assert set(side.eos) == ends
    assert side.eos[0] == 1


@pytest.mark.model
def test_the_real_model_reads_as_the_engine_does(engine: Engine, smollm2: Path) -> None:
    engine.load(smollm2)
    side = file_side("smollm2", smollm2)
    tokenizer = side.tokenizer

    @settings(max_examples=100, deadline=None, database=None, derandomize=CI)
    @given(text=st.text(alphabet=ALPHABET, max_size=80) | st.text(st.characters(exclude_categories=["Cs", "Cn"])))
    def any_text(text: str) -> None:
        if all(unicodedata.category(char) != "Cn" for char in text):
            assert tokenizer.encode(text, special=False) == engine.ids(text, special=False)

    for text in (*CORPUS, LONG, "é" * 20_000):
        for special in (False, True):
            assert tokenizer.encode(text, special=special) == engine.ids(text, special=special)
    any_text()
    ends = set()
    for token in range(17):
        answer = engine.post("/completion", prompt=[504], n_predict=2, temperature=0, logit_bias=[[token, 1e6]])
        if answer["stop_type"] == "eos":
            ends.add(token)
    assert {*side.eos} == ends >= {0, 2}


def chats() -> list[list[Message]]:
    """Twenty: one turn, three turns, and so on, with and without instructions."""
    texts = [text for text in CORPUS if "<|" not in text and "\x00" not in text and text.strip()]
    found = []
    for count in range(1, 20, 2):
        turns = [
            Message(("user", "assistant")[index % 2], texts[(count * 3 + index) % len(texts)]) for index in range(count)
        ]
        found += [turns, [Message("system", texts[count % len(texts)]), *turns]]
    return found


def rendered(engine: Engine, messages: list[Message]) -> tuple[int, ...]:
    """The prompt that the engine's own server would compute for a conversation."""
    turns = [{"role": message.role, "content": message.content} for message in messages]
    prompt = engine.post("/apply-template", messages=turns)["prompt"]
    return engine.ids(prompt, special=True, begin=True)


@pytest.mark.model
def test_chats_of_the_real_model_are_the_engines(engine: Engine, smollm2: Path) -> None:
    engine.load(smollm2)
    side = file_side("smollm2", smollm2)
    asked = chats()
    assert len(asked) == 20
    for chat in asked:
        ids = side.chat_ids(chat)
        assert ids == rendered(engine, chat)
        assert ids[:2] == (1, 9690)


@pytest.mark.parametrize("vocabulary", ["spm", "bpe"])
@pytest.mark.parametrize("writes", ["{{ bos_token }}", ""])
def test_one_bos_on_both_routes(
    vocabulary: str,
    writes: str,
    engine: Engine,
    tmp_path: Path,
    parts: dict[str, Any],
    spm: Callable[..., dict[str, Any]],
    write: Callable[..., Path],
) -> None:
    if vocabulary == "spm":
        parts = spm(more=EXTRA)
    else:
        parts["metadata"]["tokenizer.ggml.bos_token_id"] = (4, 0)
        parts["metadata"]["tokenizer.ggml.add_bos_token"] = (7, True)
    source = (
        "{% for m in messages %}[INST] {{ m.content }} [/INST]{% if enable_thinking %} think{% endif %}{% endfor %}"
    )
    parts["metadata"]["tokenizer.chat_template"] = (8, writes + source)
    path = write(tmp_path / "bos.gguf", parts)
    engine.load(path)
    side: PromptSide = file_side("bos", path)
    for text in ("hello the world", "x", "  two  "):
        ids = side.chat_ids([Message("user", text)])
        assert ids == rendered(engine, [Message("user", text)])
        assert ids[0] == side.tokenizer.bos
        assert ids[1] != side.tokenizer.bos


@pytest.mark.model
def test_the_embedded_engines_own_reading_is_wrong_and_never_used(
    smollm2: Path, tmp_path: Path, embedded: None
) -> None:
    """It knows no way to split. Beyond ASCII it is not even asked: it writes more ids than it made room for."""
    from ctransformers import LLM
    from ctransformers.llm import Config

    from store.models.prepare import prepare

    model = LLM(str(prepare(smollm2, tmp_path)), model_type="gguf", config=Config(context_length=64, threads=1))
    text = "     x=1;\n\t\treturn"
    theirs = tuple(model.tokenize(text, add_bos_token=False))
    assert theirs != Tokenizer.from_gguf(smollm2).encode(text, special=False)
    shutil.rmtree(tmp_path)

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, pre_tokenizers
from tokenizers import Tokenizer as NativeTokenizer
from tokenizers.models import BPE

from core.errors import Malformed, ModelFileError
from store.models.bytes_alphabet import LETTERS, to_bytes
from store.models.gguf import read_header
from store.models.pretokenizers import PRE_TOKENIZERS
from store.models.tokenizer import Tokenizer


def letter(byte: int) -> int:
    """The id of a byte in the tiny vocabulary: after three control tokens."""
    return 3 + byte


HELLO, SPACE_HELLO, TWO_LINES = 259 + 3, 259 + 4, 259 + 5
"""Ids of the last three words of the tiny vocabulary, after 3 controls and 256 bytes."""


def test_merges_follow_their_rank(tiny: Path) -> None:
    tokenizer = Tokenizer.from_gguf(tiny)
    assert tokenizer.encode("hello hello", special=False) == (HELLO, SPACE_HELLO)
    assert tokenizer.encode("hell", special=False) == (259 + 2,)
    assert tokenizer.encode("\n\n", special=False) == (TWO_LINES,)
    # The white space before a word is split off before anything is merged.
    assert tokenizer.encode("\n\nhex", special=False) == (letter(10), letter(10), 259, letter(ord("x")))
    assert tokenizer.encode("", special=False) == ()


def test_control_tokens_only_where_asked_for(tiny: Path) -> None:
    tokenizer = Tokenizer.from_gguf(tiny)
    text = "<|im_start|>hello<|im_end|>"
    assert tokenizer.encode(text, special=True) == (1, HELLO, 2)
    plain = tokenizer.encode(text, special=False)
    assert not set(plain) & tokenizer.control
    assert b"".join(map(tokenizer.piece, plain)) == text.encode()
    assert [tokenizer.piece(token) for token in (0, 1, 2, -1, tokenizer.vocab_size)] == [b""] * 5
    assert (tokenizer.bos, tokenizer.eos, tokenizer.eot) == (1, 2, 0)


def test_parts_join_without_a_seam(tiny: Path) -> None:
    tokenizer = Tokenizer.from_gguf(tiny)
    parts = (("<|im_start|>\n", True), ("\n", False), ("<|im_end|>hel", True), ("lo<|im_", False), ("end|>", True))
    found = tokenizer.encode_parts(parts)
    assert found[:4] == (1, TWO_LINES, 2, HELLO)
    assert not set(found[4:]) & tokenizer.control, "a control token half of which a person wrote is none"
    assert b"".join(map(tokenizer.piece, found)) == b"\n\nhello<|im_end|>"


def test_user_defined_tokens_are_names_without_power(
    tmp_path: Path, parts: dict[str, Any], write: Callable[..., Path]
) -> None:
    kind, tokens = parts["metadata"]["tokenizer.ggml.tokens"]
    parts["metadata"]["tokenizer.ggml.tokens"] = (kind, (*tokens, "<tool>", "<|odd|>"))
    kind, types = parts["metadata"]["tokenizer.ggml.token_type"]
    parts["metadata"]["tokenizer.ggml.token_type"] = (kind, (*types, 4, 4))
    tokenizer = Tokenizer.from_gguf(write(tmp_path / "a.gguf", parts))
    tool, odd = len(tokens), len(tokens) + 1
    assert tokenizer.encode("hello<tool>", special=False) == (HELLO, tool)
    assert tokenizer.piece(tool) == b"<tool>"
    assert odd in tokenizer.control, "what is spelled like a control token is one, whatever the converter says"
    assert odd not in tokenizer.encode("<|odd|>", special=False)


@pytest.fixture(scope="module")
def shared_tokenizer(shared_tiny: Path) -> Tokenizer:
    return Tokenizer.from_gguf(shared_tiny)


@settings(max_examples=200, deadline=None, database=None)
@given(text=st.text())
def test_every_text_comes_back_byte_for_byte(text: str, shared_tokenizer: Tokenizer) -> None:
    tokenizer = shared_tokenizer
    ids = tokenizer.encode(text, special=False)
    assert b"".join(map(tokenizer.piece, ids)) == text.encode()


def test_half_a_character_is_refused(tiny: Path) -> None:
    with pytest.raises(Malformed, match="lone surrogate"):
        Tokenizer.from_gguf(tiny).encode("a\ud83e", special=False)


CHANGES = {
    "unknown pre-tokenizer": (
        {"tokenizer.ggml.pre": (8, "brand-new")},
        r"pre-tokenizer 'brand-new' is not known.*smollm",
    ),
    "WordPiece": ({"tokenizer.ggml.model": (8, "bert")}, r"kind 'bert' \(WordPiece\) are not supported"),
    "unigram": ({"tokenizer.ggml.model": (8, "t5")}, r"kind 't5' \(unigram\) are not supported"),
    "SentencePiece without scores": ({"tokenizer.ggml.model": (8, "llama")}, "of 265 needs as many scores"),
    "no tokenizer": ({"tokenizer.ggml.model": None}, "carries no tokenizer"),
    "no merges": ({"tokenizer.ggml.merges": None}, "merges is not a list of strings"),
    "merge of unknown parts": ({"tokenizer.ggml.merges": (8, ("h e", "zz y"))}, "merge 'zz y' does not fit"),
    "merge without space": ({"tokenizer.ggml.merges": (8, ("he",))}, "merge 'he' does not fit"),
    "types of another length": ({"tokenizer.ggml.token_type": (5, (1, 1))}, "265 tokens have 2 types"),
    "bos out of range": ({"tokenizer.ggml.bos_token_id": (4, 265)}, "bos token 265 is not in the vocabulary"),
    "raw bytes": (
        {
            "tokenizer.ggml.tokens": (8, ("a", " ", "b")),
            "tokenizer.ggml.token_type": (5, (1, 1, 1)),
        },
        "not spelled in the byte-level alphabet",
    ),
}


@pytest.mark.parametrize("case", CHANGES)
def test_unfit_vocabularies_are_refused_by_name(
    case: str, tmp_path: Path, parts: dict[str, Any], write: Callable[..., Path]
) -> None:
    change, cause = CHANGES[case]
    for key, value in change.items():
        parts["metadata"].pop(key)
        if value is not None:
            parts["metadata"][key] = value
    path = write(tmp_path / "odd.gguf", parts)
    with pytest.raises(ModelFileError, match=cause):
        Tokenizer.from_gguf(path)


SPM_CHANGES = {
    "score missing": ({"tokenizer.ggml.scores": (6, (0.0,) * 7)}, "needs as many scores"),
    "score that is none": ({"tokenizer.ggml.scores": (6, "nan")}, "not a number"),
    "bytes missing": ({"tokenizer.ggml.token_type": (5, "no bytes")}, r"no entry for 256 bytes, <0x00> first"),
}


@pytest.mark.parametrize("case", SPM_CHANGES)
def test_unfit_sentencepiece_vocabularies_are_refused(
    case: str, tmp_path: Path, spm: Callable[..., dict[str, Any]], write: Callable[..., Path]
) -> None:
    parts = spm()
    change, cause = SPM_CHANGES[case]
    size = len(parts["metadata"]["tokenizer.ggml.tokens"][1])
    for key, (kind, value) in change.items():
        values = {"nan": (float("nan"),) * size, "no bytes": (1,) * size}.get(str(value), value)
        parts["metadata"][key] = (kind, values)
    with pytest.raises(ModelFileError, match=cause):
        Tokenizer.from_gguf(write(tmp_path / "odd.gguf", parts))


def test_sentencepiece_merges_by_score(
    tmp_path: Path, spm: Callable[..., dict[str, Any]], write: Callable[..., Path]
) -> None:
    """Worked out by hand: `ab` and `bc` compete for `abc`, and the better score wins, not the first or the longest."""
    parts = spm()
    tokens = ("<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), "▁", "a", "b", "c", "ab", "bc", "▁a")
    scores = (0.0,) * 259 + (-9.0, -9.0, -9.0, -9.0, -5.0, -3.0, -4.0)
    parts["metadata"] |= {
        "tokenizer.ggml.tokens": (8, tokens),
        "tokenizer.ggml.scores": (6, scores),
        "tokenizer.ggml.token_type": (5, (2, 3, 3) + (6,) * 256 + (1,) * 7),
    }
    parts["tensors"]["token_embd.weight"] = ((32, len(tokens)), 0)
    tokenizer = Tokenizer.from_gguf(write(tmp_path / "a.gguf", parts))
    assert [tokens[token] for token in tokenizer.encode("abc", special=False)] == ["▁a", "bc"]
    assert [tokens[token] for token in tokenizer.encode("cab", special=False)] == ["▁", "c", "ab"]
    assert [tokens[token] for token in tokenizer.encode("é", special=False)] == ["▁", "<0xC3>", "<0xA9>"]
    assert (tokenizer.bos, tokenizer.eos, tokenizer.adds_bos) == (1, 2, True)
    assert tokenizer.encode("</s>ab", special=True) == (2, tokens.index("▁a"), tokens.index("b"))
    assert b"".join(map(tokenizer.piece, tokenizer.encode("aé c", special=False))) == " aé c".encode()
    with pytest.raises(Malformed, match="lone surrogate"):
        tokenizer.encode("a\ud83e", special=False)


@settings(max_examples=200, deadline=None, database=None)
@given(text=st.text())
def test_every_text_comes_back_from_sentencepiece(text: str, shared_spm: Tokenizer) -> None:
    ids = shared_spm.encode(text, special=False)
    assert not set(ids) & shared_spm.control
    # The character that stands for a space cannot be told from one; a space was put in front of the whole.
    wanted = f" {text}".replace("\u2581", " ") if text else ""
    assert b"".join(map(shared_spm.piece, ids)).decode() == wanted


@pytest.fixture(scope="module")
def shared_spm(spm_file: Path) -> Tokenizer:
    return Tokenizer.from_gguf(spm_file)


def test_longer_control_tokens_are_found_first(
    tmp_path: Path, parts: dict[str, Any], write: Callable[..., Path]
) -> None:
    """Also where a shorter one begins before."""
    kind, tokens = parts["metadata"]["tokenizer.ggml.tokens"]
    parts["metadata"]["tokenizer.ggml.tokens"] = (kind, (*tokens, "<a>", "a><bcd>", "<bcd>"))
    kind, types = parts["metadata"]["tokenizer.ggml.token_type"]
    parts["metadata"]["tokenizer.ggml.token_type"] = (kind, (*types, 3, 4, 3))
    tokenizer = Tokenizer.from_gguf(write(tmp_path / "a.gguf", parts))
    long, longer, other = len(tokens), len(tokens) + 1, len(tokens) + 2
    assert tokenizer.encode("<a><bcd>", special=True) == (letter(ord("<")), longer)
    assert tokenizer.encode("<a>|<bcd>", special=True) == (long, letter(ord("|")), other)
    assert tokenizer.encode("<a>|<bcd>", special=False)[0] == letter(ord("<"))


def test_digest_changes_with_whatever_changes_ids(
    tmp_path: Path, parts: dict[str, Any], write: Callable[..., Path]
) -> None:
    digests = [Tokenizer.from_gguf(write(tmp_path / "a.gguf", parts)).digest]
    parts["metadata"]["general.name"] = (8, "Another name")
    assert Tokenizer.from_gguf(write(tmp_path / "b.gguf", parts)).digest == digests[0]
    for key, value in (
        ("tokenizer.ggml.pre", (8, "gpt-2")),
        ("tokenizer.ggml.merges", (8, ("h e", "l l"))),
        ("tokenizer.ggml.add_bos_token", (7, True)),
        ("tokenizer.ggml.eos_token_id", (4, 0)),
    ):
        parts["metadata"][key] = value
        digests.append(Tokenizer.from_gguf(write(tmp_path / "c.gguf", parts)).digest)
    assert len(set(digests)) == len(digests)


SPLITS = {
    "smollm": ("it's 123  x", ["it", "'s", " ", "1", "2", "3", " ", " x"]),
    "gpt-2": ("it's 123  x", ["it", "'s", " 123", " ", " x"]),
    "llama-bpe": ("IT'S 1234\n\nx?!\n", ["IT", "'S", " ", "123", "4", "\n\n", "x", "?!\n"]),
    "qwen2": ("IT'S 1234\n\nx?!\n", ["IT", "'S", " ", "1", "2", "3", "4", "\n\n", "x", "?!\n"]),
    "default": ("a+b 1234", ["a", "+", "b", " ", "123", "4"]),
}


@pytest.mark.parametrize("name", SPLITS)
def test_each_family_splits_text_its_own_way(name: str) -> None:
    text, wanted = SPLITS[name]
    pieces = PRE_TOKENIZERS[name].build().pre_tokenize_str(text)
    assert [(to_bytes(piece) or b"").decode() for piece, _ in pieces] == wanted


@settings(max_examples=300, deadline=None, database=None)
@given(text=st.text(alphabet=st.one_of(st.sampled_from(" \n\t'sabé\u0661½0129🦜日…"), st.characters(codec="utf-8"))))
def test_smollm_splits_as_the_published_tokenizer_is_configured(text: str) -> None:
    published = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    ours = [piece for piece, _ in PRE_TOKENIZERS["smollm"].build().pre_tokenize_str(text)]
    assert ours == [piece for piece, _ in published.pre_tokenize_str(text)]


def test_the_alphabet_is_one_letter_per_byte() -> None:
    assert len(set(LETTERS)) == 256
    assert (LETTERS[ord(" ")], LETTERS[ord("\n")], LETTERS[ord("A")]) == ("Ġ", "Ċ", "A")
    assert to_bytes("".join(LETTERS)) == bytes(range(256))
    assert to_bytes("a b") is None


# Ids published with the model, worked out by other programs.
KNOWN = {
    "Hello, we can use": (19556, 28, 392, 416, 722),
    "The capital of France is": (504, 3575, 282, 4649, 314),
    "You are a helpful AI assistant named SmolLM, trained by Hugging Face": (
        *(2683, 359, 253, 5356, 5646, 11173, 3365, 3511, 308, 34519),
        *(28, 7018, 411, 407, 19712, 8182),
    ),
    "\n": (198,),
    "Hello world! 123": (19556, 905, 17, 216, 33, 34, 35),
    "Café déjà vu.": (51, 1939, 2756, 32564, 90, 16739, 386, 101, 30),
    "  multiple   spaces": (216, 2701, 256, 5600),
}
DIGEST = "5d0b092dc54e86d85718d74e2830556963077ef11e6610bd63c0d68010bd443c"
STRANGE = (
    "🦜 is a parrot; 日本語, العربية, naïve — 12½ % of 1,234.5\n\n\t\tx  \r\n y'all DON'T",
    "<|im_start|>user\nhi<|im_end|>\n<|endoftext|><repo_name>x",
    " " * 1_000 + "end",
    "a" * 5_000 + "0123456789" * 50 + "\n" * 99,
    "hello wörld. " * 5_000,
)


@pytest.mark.model
def test_real_ids_are_those_published_for_the_model(smollm2: Path) -> None:
    tokenizer = Tokenizer.from_gguf(smollm2)
    for text, ids in KNOWN.items():
        assert tokenizer.encode(text, special=False) == ids
    assert tokenizer.encode("<|im_start|><|im_end|>", special=True) == (1, 2)
    assert (tokenizer.bos, tokenizer.eos, tokenizer.eot, tokenizer.vocab_size) == (1, 2, 0, 49_152)
    # The digest of entries made before there was another kind of vocabulary.
    assert tokenizer.digest == DIGEST
    parrot = tokenizer.encode("🦜", special=False)
    assert len(parrot) == 3
    assert b"".join(map(tokenizer.piece, parrot)).decode() == "🦜"


@pytest.mark.model
def test_real_ids_equal_those_of_the_published_configuration(smollm2: Path) -> None:
    header = read_header(smollm2)
    tokens = header.texts("tokenizer.ggml.tokens")
    merges = [tuple(merge.split(" ")) for merge in header.texts("tokenizer.ggml.merges")]
    published = NativeTokenizer(BPE(vocab={token: index for index, token in enumerate(tokens)}, merges=merges))
    published.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    published.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in tokens[:17]])
    tokenizer = Tokenizer.from_gguf(header)
    for text in STRANGE:
        assert tokenizer.encode(text, special=True) == tuple(published.encode(text).ids)
        plain = tokenizer.encode(text, special=False)
        assert not set(plain) & set(range(17))
        assert b"".join(map(tokenizer.piece, plain)) == text.encode()

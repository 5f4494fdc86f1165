"""The target's tokenizer and chat template, from a Hugging Face directory or a GGUF file.

Owns: text <-> ids. GGUF names a pre-tokenizer but not its rules; the ones we know are in PRE. For `smollm` that includes
the split of every digit, which transformers' GGUF import loses."""
from __future__ import annotations

import json
import os

from .errors import TrainError
from .target import gguf_field


class Text:
    """encode, decode and the chat template of one target."""

    def __init__(self, tokenizer, template: str, specials: dict[str, str | None], stops: set[int]):
        self.tokenizer, self.template, self.specials, self.stops = tokenizer, template, specials, stops

    def encode(self, text: str) -> list[int]:
        """Ids of a text; special tokens written in it are recognised, none are added."""
        return self.tokenizer.encode(text, add_special_tokens=False).ids

    def decode(self, ids: list[int]) -> str:
        """Text of ids, special tokens left out."""
        return self.tokenizer.decode(list(ids), skip_special_tokens=True)

    def chat(self, turns: list[dict[str, str]], answer: bool = True) -> str:
        """The prompt text of a conversation of {role, content}; `answer` opens the assistant's turn."""
        import jinja2.sandbox

        env = jinja2.sandbox.ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
        env.globals["raise_exception"] = _raise
        try:
            return env.from_string(self.template).render(messages=turns, add_generation_prompt=answer, enable_thinking=False, **self.specials)
        except jinja2.TemplateError as e:
            raise TrainError(f"chat template: {e}") from e

    def ask(self, user: str) -> list[int]:
        """Ids of a one-turn prompt up to where the answer begins."""
        return self.encode(self.chat([{"role": "user", "content": user}]))

    def open_user_turn(self, system: str | None) -> tuple[list[int], list[int]]:
        """(head, tail): ids up to where the user's words begin, and from where they end to where the answer begins.
        A target that continues `head` writes a user turn itself; head + its words + tail is a prompt."""
        mark = "\u241e"
        turns = [{"role": "system", "content": system}] if system else []
        text = self.chat([*turns, {"role": "user", "content": mark}])
        head, found, tail = text.partition(mark)
        if not found:
            raise TrainError("chat template: it drops the user's words")
        return self.encode(head), self.encode(tail)


def _raise(message: str):
    raise TrainError(f"chat template: {message}")


def load_text(path: str) -> Text:
    """Tokenizer and template beside the weights at `path` (directory or .gguf)."""
    return _from_hf(path) if os.path.isdir(path) else _from_gguf(path)


def _from_hf(path: str) -> Text:
    from tokenizers import Tokenizer

    try:
        tokenizer = Tokenizer.from_file(os.path.join(path, "tokenizer.json"))
        with open(os.path.join(path, "tokenizer_config.json"), encoding="utf-8") as f:
            config = json.load(f)
        with open(os.path.join(path, "config.json"), encoding="utf-8") as f:
            eos = json.load(f).get("eos_token_id")
    except Exception as e:
        raise TrainError(f"tokenizer: {path}: {e}") from e
    template = config.get("chat_template")
    if template is None and os.path.exists(os.path.join(path, "chat_template.jinja")):
        with open(os.path.join(path, "chat_template.jinja"), encoding="utf-8") as f:
            template = f.read()
    name = lambda key: config[key]["content"] if isinstance(config.get(key), dict) else config.get(key)
    specials = {key: name(key) for key in ("bos_token", "eos_token", "pad_token")}
    stops = {eos} if isinstance(eos, int) else set(eos or [])
    if specials["eos_token"]:
        stops.add(tokenizer.token_to_id(specials["eos_token"]))
    return Text(tokenizer, template or "", specials, {s for s in stops if s is not None})


def _from_gguf(path: str) -> Text:
    from gguf import GGUFReader
    from tokenizers import AddedToken, Tokenizer, decoders, models

    reader = GGUFReader(path)
    get = lambda key, default=None: gguf_field(reader, f"tokenizer.{key}", default)
    if get("ggml.model") != "gpt2":
        raise TrainError(f"tokenizer: {path}: tokenizer.ggml.model is {get('ggml.model')!r}, expected 'gpt2'; use the Hugging Face directory")
    tokens, kinds = get("ggml.tokens"), get("ggml.token_type")
    merges = [tuple(m.split(" ")) for m in get("ggml.merges")]
    tokenizer = Tokenizer(models.BPE(vocab={t: i for i, t in enumerate(tokens)}, merges=merges))
    tokenizer.pre_tokenizer = _pre_tokenizer(path, get("ggml.pre"))
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(t, special=True, normalized=False) for t, k in zip(tokens, kinds) if k == 3])
    named = {key: get(f"ggml.{key}_token_id") for key in ("bos", "eos", "padding")}
    specials = {f"{k if k != 'padding' else 'pad'}_token": None if v is None else tokens[v] for k, v in named.items()}
    stops = {named["eos"]} | {i for i, t in enumerate(tokens[:64]) if t in ("<|im_end|>", "<|endoftext|>")}
    return Text(tokenizer, get("chat_template") or "", specials, {s for s in stops if s is not None})


QWEN2 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")


def _pre_tokenizer(path: str, name: str):
    from tokenizers import Regex, pre_tokenizers as p

    gpt2 = p.ByteLevel(add_prefix_space=False, use_regex=True)
    if name in ("gpt-2", "gpt2", "default"):
        return gpt2
    if name == "smollm":
        return p.Sequence([p.Digits(individual_digits=True), gpt2])
    if name == "qwen2":
        return p.Sequence([p.Split(Regex(QWEN2), behavior="isolated"), p.ByteLevel(add_prefix_space=False, use_regex=False)])
    raise TrainError(f"tokenizer: {path}: pre-tokenizer {name!r} is not known here; use the Hugging Face directory")

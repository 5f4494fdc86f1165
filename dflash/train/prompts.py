"""Prompts for training data: templates over topics, code, maths, passages and JSON, and openings for user turns that
the target writes itself.

Owns: the sampling; the wordings are in prompts.txt."""
from __future__ import annotations

import argparse
import ast
import json
import os
import random
import re
import sysconfig
from typing import Callable, Iterator

from .sources import misspell, records, rewritten, tools

NAMES = "Ana Ben Carla Dev Elif Femi Greta Hugo Ines Jonas Kemi Lars Mina Noor Otto Petra Quinn Rosa Sven Tara Umar Vera Wim Yuki Zoe".split()
THINGS = "apples pencils stamps marbles tickets cookies shells books coins bottles chairs eggs cards flowers plates lemons badges bricks".split()
KEYS = "name id date price city status tags author rating colour weight start end email phone count country language category notes".split()
CITIES = "Lisbon Oslo Nairobi Lima Osaka Dublin Krakow Tunis Hanoi Quito Turin Perth Bergen Accra Ghent".split()
MONTHS = "January February March April May June July August September October November December".split()

# Openings for user turns written by the target: (weight, system turn; None stands for the template's own).
PERSONAS = [(8, None), (3, "You are a patient programming tutor. The user asks for help with a piece of code."),
            (3, "You are a maths teacher. The user asks a word problem with numbers in it."),
            (2, "You are an editor. The user pastes a text and says what to do with it."),
            (2, "You summarise. The user pastes a passage and asks for a summary."),
            (1, "You turn text into JSON. The user gives some data and the keys."),
            (2, "You are a writing partner. The user asks for a story, an email, a speech or a poem."),
            (2, "You answer questions about science, history, places and people."),
            (2, "You give everyday advice. The user describes a situation.")]


def read_lists(path: str = os.path.join(os.path.dirname(__file__), "prompts.txt")) -> dict[str, list[str]]:
    """The sections of prompts.txt."""
    lists: dict[str, list[str]] = {}
    entries: list[str] = []
    with open(path, encoding="utf-8") as f:
        for line in f:
            line = line.strip()
            if line.startswith("["):
                entries = lists.setdefault(line.strip("[]"), [])
            elif line and not line.startswith("#"):
                entries.append(line.replace("\\n", "\n"))
    return lists


class Prompts:
    """A seeded stream of user turns. `passages` are texts to summarise or edit: answers the target gave earlier."""

    def __init__(self, seed: int, passages: list[str] | None = None):
        self.rng = random.Random(seed)
        self.list = read_lists()
        self.passages, self.functions = passages or [], standard_functions()
        self.kinds: list[tuple[float, str, Callable[[], str]]] = [
            (.22, "topic", self._topic), (.13, "code", self._code), (.07, "function", self._function), (.14, "maths", self._maths),
            (.04, "json", self._json), (.06, "life", self._life), (.06, "passage", self._passage), (.12, "edit", self._edit),
            (.12, "source", self._source), (.10, "records", self._records), (.06, "tools", self._tools)]

    def __iter__(self) -> Iterator[tuple[str, str]]:
        """Endless (kind, user turn)."""
        weights = [k[0] for k in self.kinds]
        while True:
            _, name, make = self.rng.choices(self.kinds, weights)[0]
            yield name, make()

    def persona(self) -> str | None:
        """A system turn under which the target is to write a user turn."""
        return self.rng.choices([p for _, p in PERSONAS], [w for w, _ in PERSONAS])[0]

    def _pick(self, items: list[str]) -> str:
        return self.rng.choice(items)

    def _topic(self) -> str:
        return self._pick(self.list["topic ask"]).format(t=self._pick(self.list["topic"]), u=self._pick(self.list["topic"]))

    def _code(self) -> str:
        return self._pick(self.list["code ask"]).format(c=self._pick(self.list["code"]))

    def _function(self) -> str:
        return self._pick(self.list["function ask"]).format(f=self._pick(self.functions)) if self.functions else self._code()

    def _life(self) -> str:
        return self._pick(self.list["life ask"]).format(l=self._pick(self.list["life"]))

    def _maths(self) -> str:
        r = self.rng
        a, b = r.sample(NAMES, 2)
        return self._pick(self.list["maths"]).format(a=a, b=b, i=self._pick(THINGS), x=r.randint(12, 99), y=r.randint(3, 24), z=r.randint(2, 9),
                                             p=r.randint(60, 600))

    def _fact(self) -> str:
        r = self.rng
        a, b = r.sample(NAMES, 2)
        return self._pick(self.list["fact"]).format(a=a, b=b, c=self._pick(CITIES), d=f"{r.randint(1, 28)} {self._pick(MONTHS)}",
                                             n=r.randint(2, 60), p=r.randint(10, 900), i=self._pick(THINGS), t=self._pick(self.list["topic"]))

    def _json(self) -> str:
        r = self.rng
        keys = r.sample(KEYS, r.randint(2, 5))
        rows = [", ".join(keys)] + [", ".join(r.choice([self._pick(NAMES), self._pick(CITIES), str(r.randint(1, 500))]) for _ in keys)
                                    for _ in range(r.randint(2, 4))]
        return self._pick(self.list["json ask"]).format(o=self._pick(self.list["object"]), k=", ".join(f'"{k}"' for k in keys), k0=keys[0], k1=keys[1],
                                                s=self._fact(), f="get_" + keys[0], r="\n".join(rows))

    def _text(self, most: int = 1) -> str:
        """A passage, or up to `most` of them one after the other."""
        n = self.rng.randint(1, most)
        return "\n\n".join(self._pick(self.passages) if self.passages else " ".join(self._fact() for _ in range(self.rng.randint(3, 6))) for _ in range(n))

    def _passage(self) -> str:
        return self._pick(self.list["passage ask"]).format(p=self._text())

    def _edit(self) -> str:
        return self._pick(self.list["edit ask"]).format(p=misspell(self.rng, self._text(), self.rng.choice([0, 0.1, 0.2])))

    def _source(self) -> str:
        return self._pick(self.list["source ask"]).format(p=self._text(3))

    def _records(self) -> str:
        what, keys, notation, text = records(self.rng)
        return self._pick(self.list["records ask"]).format(w=what, n=notation, r=text, k=", ".join(f'"{k}"' for k in keys), k0=keys[0])

    def _tools(self) -> str:
        text, says = tools(self.rng)
        return self._pick(self.list["tools ask"]).format(t=text, u=says)


    def copies(self) -> Iterator[tuple[str, str, str]]:
        """Endless (kind, user turn, answer), where the answer is known: the text of the turn again, mended, in part, with
        one word changed, or its records in another notation. A drafter that has seen enough of these copies from the
        context; few answers of a small target keep to their source for long."""
        makers = [(.3, self._copy), (.3, self._mend), (.15, self._pick_sentences), (.15, self._change), (.1, self._table)]
        while True:
            made = self.rng.choices([m for _, m in makers], [w for w, _ in makers])[0]()
            if made:
                yield made

    def _copy(self) -> tuple[str, str, str]:
        text = self._text(2)
        return "copy", self._pick(self.list["copy ask"]).format(p=text), text

    def _mend(self) -> tuple[str, str, str]:
        text = self._text()
        return "mend", self._pick(self.list["mend ask"]).format(p=misspell(self.rng, text, self.rng.choice([0.05, 0.1, 0.2]))), text

    def _pick_sentences(self) -> tuple[str, str, str] | None:
        text = self._text(2)
        parts = re.findall(r"[^.!?]+[.!?]+\s*", text)
        if len(parts) < 3:
            return None
        m = self.rng.randrange(1, len(parts))
        ask = self._pick(self.list["pick ask"])
        answer = parts[m] if "number {n}" in ask else "".join(parts[m:])
        return "pick", ask.format(p=text, m=m, n=m + 1), answer.strip()

    def _change(self) -> tuple[str, str, str] | None:
        code = bool(self.functions) and self.rng.random() < 0.5
        text = self._pick(self.functions) if code else self._text()
        words = sorted(set(re.findall(r"[A-Za-z_]{4,}", text)))
        if not words:
            return None
        a, b = self._pick(words), self._pick(self.list["object"] if not code else KEYS)
        b = b.replace(" ", "_") if code else b
        return "change", self._pick(self.list["change ask"]).format(a=a, b=b, p=text), re.sub(rf"\b{a}\b", lambda _: b, text)

    def _table(self) -> tuple[str, str, str]:
        what, old, notation, new = rewritten(self.rng)
        return "table", self._pick(self.list["table ask"]).format(w=what, n=notation, r=old), new


def standard_functions(limit: int = 900) -> list[str]:
    """Short functions of the running Python's own library, dedented."""
    found, root = [], sysconfig.get_paths()["stdlib"]
    for name in sorted(n for n in os.listdir(root) if n.endswith(".py")):
        try:
            with open(os.path.join(root, name), encoding="utf-8") as f:
                source = f.read()
            lines, nodes = source.split("\n"), ast.walk(ast.parse(source))
        except (OSError, ValueError, SyntaxError):
            continue
        for node in nodes:
            if isinstance(node, ast.FunctionDef):
                part = lines[node.lineno - 1:node.end_lineno]
                if 4 <= len(part) <= 18 and sum(map(len, part)) < limit:
                    found.append("\n".join(line[node.col_offset:] for line in part))
    return found


def write_prompts(seed: int, each: int) -> None:
    """`each` prompts of every kind as JSON lines on standard output, in the order in which they were drawn."""
    made = Prompts(seed)
    left = {name: each for _, name, _ in made.kinds}
    for name, text in made:
        if left[name]:
            left[name] -= 1
            print(json.dumps({"id": f"{name}-{each - left[name]}", "category": name, "prompt": text}))
        if not any(left.values()):
            return


if __name__ == "__main__":
    options = argparse.ArgumentParser(prog="python3 -m dflash.train.prompts", description=write_prompts.__doc__)
    options.add_argument("--seed", type=int, default=1)
    options.add_argument("--each", type=int, default=9)
    write_prompts(**vars(options.parse_args()))

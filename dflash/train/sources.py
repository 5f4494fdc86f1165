"""Texts that an answer copies from: records in several notations, tools to call, texts with mistakes in them.

Owns: how such texts are made up. Wordings of what is asked about them are in prompts.txt. A drafter learns to copy from
the context only where training has something to copy, so these are long on purpose."""
from __future__ import annotations

import json
import random
import re
from typing import Callable

FIRST = "Ana Ben Carla Dev Elif Femi Greta Hugo Ines Jonas Kemi Lars Mina Noor Otto Petra Quinn Rosa Sven Tara Umar Vera Wim Yuki Zoe".split()
LAST = "Abel Bakker Costa Dahl Evans Fischer Garcia Hansen Ito Jansen Kaya Lopez Meyer Novak Okoro Patel Rossi Silva Tanaka Weber".split()
CITY = "Lisbon Oslo Nairobi Lima Osaka Dublin Krakow Tunis Hanoi Quito Turin Perth Bergen Accra Ghent".split()
ITEM = "lamp,kettle,desk,green tea,rain coat,notebook,bicycle pump,wall clock,wool scarf,frying pan,garden hose,mouse pad,oak shelf,tent".split(",")
SPECIES = "barn owl,red fox,grey seal,common frog,house sparrow,field mouse,mute swan,green lizard,brown hare,stag beetle".split(",")
TITLE = "The Long Bridge,Salt and Stone,A Map of Rain,Seven Winters,The Glass Orchard,Night Ferry,Paper Boats,The Quiet Hour".split(",")
LEVEL, SERVICE = "INFO WARN ERROR DEBUG".split(), "billing search mail login upload cart".split()
FAULT = ("request took too long,cache was cleared,user signed in,file not found,connection lost,retry succeeded,disk nearly full,"
         "password rejected").split(",")
COMPLAINT = ("The app closes when I open a photo.,How do I change my password?,Please add a dark theme.,I was charged twice in March.,"
             "Search finds nothing for names with accents.,Can I export my notes?,The parcel came damaged.,The page loads slowly on my phone.").split(",")

Column = tuple[str, Callable[[random.Random], object]]


def _one(items: list[str]) -> Callable[[random.Random], object]:
    return lambda r: r.choice(items)


def _day(r: random.Random) -> str:
    return f"{r.randint(2019, 2026)}-{r.randint(1, 12):02}-{r.randint(1, 28):02}"


def _number(low: int, high: int) -> Callable[[random.Random], object]:
    return lambda r: r.randint(low, high)


def _price(r: random.Random) -> float:
    return round(r.uniform(1, 90), 2)


# What the records are of, and their columns.
KINDS: list[tuple[str, list[Column]]] = [
    ("products", [("id", _number(100, 999)), ("name", _one(ITEM)), ("price", _price), ("stock", _number(0, 80)), ("colour", _one("red blue green black white".split()))]),
    ("people", [("first_name", _one(FIRST)), ("last_name", _one(LAST)), ("age", _number(18, 80)), ("city", _one(CITY)), ("member", _one(["yes", "no"]))]),
    ("log lines", [("time", lambda r: f"{r.randint(0, 23):02}:{r.randint(0, 59):02}:{r.randint(0, 59):02}"), ("level", _one(LEVEL)),
                   ("service", _one(SERVICE)), ("message", _one(FAULT)), ("ms", _number(2, 4000))]),
    ("sightings", [("date", _day), ("species", _one(SPECIES)), ("count", _number(1, 40)), ("place", _one("pond,north field,old barn,river bank,wood edge".split(",")))]),
    ("books", [("title", _one(TITLE)), ("author", lambda r: f"{r.choice(FIRST)} {r.choice(LAST)}"), ("year", _number(1950, 2025)), ("pages", _number(90, 700))]),
    ("orders", [("order", _number(1000, 9999)), ("customer", lambda r: f"{r.choice(FIRST)} {r.choice(LAST)}"), ("date", _day), ("total", _price),
                ("status", _one("open paid sent returned".split()))]),
    ("tickets", [("ticket", _number(100, 999)), ("from", _one(FIRST)), ("text", _one(COMPLAINT))]),
    ("readings", [("sensor", lambda r: f"s-{r.randint(1, 40):02}"), ("site", _one(CITY)), ("temperature", lambda r: round(r.uniform(-5, 35), 1)),
                  ("battery", _number(5, 100))]),
    ("trains", [("from", _one(CITY)), ("to", _one(CITY)), ("departs", lambda r: f"{r.randint(5, 22):02}:{r.randint(0, 59):02}"), ("platform", _number(1, 12)),
                ("delay", _number(0, 40))])]

TOOLS = [("set_timer", [("minutes", "integer"), ("label", "string")], "Please remind me of the {i} in {n} minutes, and of the {j} ten minutes later."),
         ("send_mail", [("to", "string"), ("subject", "string"), ("body", "string")], "Tell {a} that the {i} will be in {c} on {d}."),
         ("find_trains", [("origin", "string"), ("destination", "string"), ("date", "string")], "I need to go from {c} to {e} on {d} and come back a week later."),
         ("add_to_cart", [("item", "string"), ("count", "integer")], "Put {n} of the {i} and one {j} into my basket."),
         ("create_event", [("title", "string"), ("date", "string"), ("place", "string")], "{a} and I meet in {c} on {d} to look at the {i}."),
         ("set_heating", [("room", "string"), ("degrees", "number")], "Make the kitchen {n} degrees and the bedroom two degrees colder."),
         ("search_files", [("pattern", "string"), ("folder", "string")], "Where did I save the notes on the {i} from {c}?"),
         ("move_robot", [("to", "string"), ("carry", "string")], "Bring the {i} to the dock, and then the {j} to shelf {n}.")]

CONFUSED = {"their": "there", "there": "their", "its": "it's", "your": "you're", "to": "too", "too": "to", "than": "then", "then": "than",
            "were": "where", "has": "have", "have": "has", "is": "are", "are": "is", "was": "were", "a": "an", "an": "a"}


def records(rng: random.Random) -> tuple[str, list[str], str, str]:
    """(what they are, their keys, the name of a notation, the records in it)."""
    what, keys, rows = _rows(rng)
    notation = rng.choice(list(NOTATIONS))
    return what, keys, notation, NOTATIONS[notation](keys, rows)


def rewritten(rng: random.Random) -> tuple[str, str, str, str]:
    """(what they are, records in one notation, the name of another, the records in that)."""
    what, keys, rows = _rows(rng)
    old, new = rng.sample(list(NOTATIONS), 2)
    return what, NOTATIONS[old](keys, rows), new, NOTATIONS[new](keys, rows)


def _rows(rng: random.Random) -> tuple[str, list[str], list[list[object]]]:
    """(what they are, their keys, their values)."""
    what, columns = rng.choice(KINDS)
    columns = sorted(rng.sample(range(len(columns)), rng.randint(3, len(columns))))
    table = next(c for k, c in KINDS if k == what)
    keys = [table[i][0] for i in columns]
    rows = [[table[i][1](rng) for i in columns] for _ in range(rng.randint(3, 8))]
    return what, keys, rows


def _csv(keys: list[str], rows: list[list[object]]) -> str:
    return "\n".join([",".join(keys)] + [",".join(map(str, row)) for row in rows])


def _list(keys: list[str], rows: list[list[object]]) -> str:
    return "\n".join(f"{i}) " + ", ".join(map(str, row)) for i, row in enumerate(rows, 1))


def _pairs(keys: list[str], rows: list[list[object]]) -> str:
    return "\n".join(" ".join(f"{k}={v}" for k, v in zip(keys, row)) for row in rows)


def _markdown(keys: list[str], rows: list[list[object]]) -> str:
    lines = [keys, ["---"] * len(keys), *rows]
    return "\n".join("| " + " | ".join(map(str, line)) + " |" for line in lines)


def _json(keys: list[str], rows: list[list[object]]) -> str:
    return "[\n" + ",\n".join("  " + json.dumps(dict(zip(keys, row))) for row in rows) + "\n]"


NOTATIONS: dict[str, Callable[[list[str], list[list[object]]], str]] = {
    "CSV": _csv, "list": _list, "text": _pairs, "Markdown table": _markdown, "JSON": _json}


def tools(rng: random.Random) -> tuple[str, str]:
    """(descriptions of one to three tools, what the user of one of them says)."""
    chosen = rng.sample(TOOLS, rng.randint(1, 3))
    if rng.random() < 0.5:
        text = "\n".join(json.dumps(dict(name=name, parameters=dict(p))) for name, p, _ in chosen)
    else:
        text = "\n".join(f"- {name}({', '.join(f'{k}: {t}' for k, t in p)})" for name, p, _ in chosen)
    (i, j), (c, e) = rng.sample(ITEM, 2), rng.sample(CITY, 2)
    return text, rng.choice(chosen)[2].format(i=i, j=j, c=c, e=e, a=rng.choice(FIRST), n=rng.randint(2, 24), d=_day(rng))


def misspell(rng: random.Random, text: str, rate: float = 0.12) -> str:
    """The text with about that share of its words spoilt."""
    return re.sub(r"[A-Za-z']+", lambda m: _spoil(rng, m[0]) if rng.random() < rate else m[0], text)


def _spoil(rng: random.Random, word: str) -> str:
    if word.lower() in CONFUSED:
        return CONFUSED[word.lower()]
    if len(word) < 4:
        return word
    i = rng.randint(1, len(word) - 3)
    return rng.choice([word[:i] + word[i + 1] + word[i] + word[i + 2:], word[:i] + word[i + 1:], word[:i] + word[i] + word[i:], word.lower()])

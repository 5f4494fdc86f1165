"""Files of answers and of features.

A data folder holds shards: answers.S.jsonl, one record a line {id, prompt, answer, source, temp[, row]}, and where the
target's features were kept features.S.bin, rows of (T+1)*H bf16 (taps in order, then the final-normed stream) for all
positions but the last of a record, the first at `row`. meta.json names the target and the taps. A shard is written by
one process, append only; a line is written after its rows, so whatever a kill leaves half-written is cut off on resume."""
from __future__ import annotations

import json
import os
import zlib
from dataclasses import dataclass
from typing import Iterator

import numpy as np
import torch

from .errors import TrainError
from .generate import Job, loop_start
from .target import Target

MIN_ANSWER = 8  # shorter answers teach nothing about blocks


@dataclass
class Record:
    """One conversation turn: ids of the prompt and of the target's answer. `row` is None without stored features."""

    id: str
    prompt: list[int]
    answer: list[int]
    source: str
    temp: float
    shard: str = ""
    row: int | None = None

    def held_out(self, one_in: int) -> bool:
        """Whether this record belongs to the validation part: a hash of its prompt, so repeats stay on one side."""
        return zlib.crc32(np.asarray(self.prompt, dtype=np.int32).tobytes()) % one_in == 0


def read_records(file: str, shard: str = "", max_tokens: int | None = None) -> Iterator[Record]:
    """Records of one file. A last line without a newline is ignored (a writer is at work); anything else that does not
    fit raises TrainError with the line's number."""
    with open(file, encoding="utf-8") as f:
        for number, line in enumerate(f, 1):
            if not line.endswith("\n"):
                return
            try:
                j = json.loads(line)
                record = Record(str(j["id"]), list(j["prompt"]), list(j["answer"]), j.get("source", ""), float(j.get("temp", 0)), shard, j.get("row"))
            except (ValueError, KeyError, TypeError) as e:
                raise TrainError(f"{file}: line {number}: {type(e).__name__} {e}") from e
            if not record.prompt or not record.answer:
                raise TrainError(f"{file}: line {number}: record {record.id} has an empty {'prompt' if not record.prompt else 'answer'}")
            if max_tokens and len(record.prompt) + len(record.answer) > max_tokens:
                raise TrainError(f"{file}: line {number}: record {record.id} has {len(record.prompt) + len(record.answer)} tokens, the target takes {max_tokens}")
            yield record


class Folder:
    """A data folder: its meta, its records, and the features of a record."""

    def __init__(self, path: str):
        self.path = path
        try:
            with open(os.path.join(path, "meta.json"), encoding="utf-8") as f:
                self.meta = json.load(f)
            self.taps, self.hidden, self.vocab = tuple(self.meta["taps"]), self.meta["hidden"], self.meta["vocab"]
        except (OSError, ValueError, KeyError) as e:
            raise TrainError(f"{path}/meta.json: {type(e).__name__}: {e}") from e
        self.maps: dict[str, np.memmap] = {}

    def check(self, target: Target) -> None:
        """Raises TrainError when the answers came from a target of another shape."""
        c = target.config
        if (c.hidden, c.vocab) != (self.hidden, self.vocab):
            raise TrainError(f"{self.path}: made with a target of hidden {self.hidden} and vocabulary {self.vocab}, this one has {c.hidden} and {c.vocab}")

    def records(self, context: int | None = None, cut_loops: bool = True) -> list[Record]:
        """All records, repeated and too short ones dropped; answers are cut where they start to loop, unless told not to."""
        kept, seen = [], set()
        for name in sorted(os.listdir(self.path)):
            if name.startswith("answers.") and name.endswith(".jsonl"):
                for r in read_records(os.path.join(self.path, name), name.split(".")[1], context):
                    cut = loop_start(r.answer) if cut_loops else None
                    r.answer = r.answer if cut is None else r.answer[:cut]
                    key = (tuple(r.prompt), tuple(r.answer))
                    if len(r.answer) >= MIN_ANSWER and key not in seen:
                        seen.add(key)
                        kept.append(r)
        return kept

    def features(self, r: Record) -> torch.Tensor | None:
        """Stored rows [P + A - 1, (T+1)*H] bf16 of a record, or None."""
        if r.row is None:
            return None
        width, n = (len(self.taps) + 1) * self.hidden, len(r.prompt) + len(r.answer) - 1
        rows = self.maps.get(r.shard)
        if rows is None or len(rows) < r.row + n:
            file = os.path.join(self.path, f"features.{r.shard}.bin")
            rows = self.maps[r.shard] = np.memmap(file, dtype=np.int16, mode="r", shape=(os.path.getsize(file) // (2 * width), width))
        if len(rows) < r.row + n:
            raise TrainError(f"{self.path}/features.{r.shard}.bin: record {r.id} needs rows up to {r.row + n}, the file has {len(rows)}")
        return torch.from_numpy(rows[r.row:r.row + n].copy()).view(torch.bfloat16)


class ShardWriter:
    """Appends records (and features) to a shard; opening it resumes after the last whole record."""

    def __init__(self, path: str, shard: str, meta: dict):
        os.makedirs(path, exist_ok=True)
        write_meta(path, meta)
        self.width = (len(meta["taps"]) + 1) * meta["hidden"]
        self.text_file, self.bin_file = (os.path.join(path, f"{kind}.{shard}.{ext}") for kind, ext in (("answers", "jsonl"), ("features", "bin")))
        self.done = self._resume()
        self.text, self.bin = open(self.text_file, "ab"), open(self.bin_file, "ab")

    def _resume(self) -> list[Record]:
        if not os.path.exists(self.text_file):
            self.row = 0
            return []
        with open(self.text_file, "r+b") as f:
            data = f.read()
            f.truncate(data.rfind(b"\n") + 1)
        done = list(read_records(self.text_file))
        self.row = max((r.row + len(r.prompt) + len(r.answer) - 1 for r in done if r.row is not None), default=0)
        if os.path.exists(self.bin_file):
            with open(self.bin_file, "r+b") as f:
                f.truncate(self.row * self.width * 2)
        return done

    def write(self, job: Job) -> None:
        """Store a finished job; raises TrainError when the disk does not take it."""
        record = dict(id=job.id, prompt=job.prompt, answer=job.answer, source=job.source, temp=job.temp)
        try:
            if job.features is not None:
                self.bin.write(job.features.contiguous().view(torch.int16).numpy().tobytes())
                self.bin.flush()
                record["row"], self.row = self.row, self.row + len(job.features)
            self.text.write((json.dumps(record) + "\n").encode())
            self.text.flush()
        except OSError as e:
            raise TrainError(f"{self.text_file}: {e}") from e

    def close(self) -> None:
        self.text.close()
        self.bin.close()


def write_meta(path: str, meta: dict) -> None:
    """Writes meta.json, or checks that the folder's own says the same."""
    file = os.path.join(path, "meta.json")
    if not os.path.exists(file):
        with open(file + ".tmp", "w", encoding="utf-8") as f:
            json.dump(meta, f)
        os.replace(file + ".tmp", file)
        return
    with open(file, encoding="utf-8") as f:
        old = json.load(f)
    for key in ("taps", "hidden", "vocab"):
        if old.get(key) != meta[key]:
            raise TrainError(f"{file}: {key} is {old.get(key)}, this run has {meta[key]}; use another folder")


def pack_answers(folder: Folder, file: str) -> None:
    """All records as one compressed .npz: `ids` uint16 (prompt, answer, prompt, ...), `lengths` [n, 2], `temp` [n]."""
    if folder.vocab > 1 << 16:
        raise TrainError(f"{file}: a vocabulary of {folder.vocab} does not fit 16 bits")
    records = folder.records()
    ids = np.concatenate([np.asarray(r.prompt + r.answer, dtype=np.uint16) for r in records])
    lengths = np.asarray([(len(r.prompt), len(r.answer)) for r in records], dtype=np.uint16)
    np.savez_compressed(file, ids=ids, lengths=lengths, temp=np.asarray([r.temp for r in records], dtype=np.float16))


def unpack_answers(file: str, out: str, meta: dict) -> int:
    """A packed file back into a data folder (shard "packed", without features); returns the number of records."""
    try:
        with np.load(file) as z:
            ids, lengths, temp = z["ids"].tolist(), z["lengths"].tolist(), z["temp"].tolist()
    except (OSError, ValueError, KeyError) as e:
        raise TrainError(f"{file}: {type(e).__name__}: {e}") from e
    if len(ids) != sum(p + a for p, a in lengths) or len(temp) != len(lengths) or max(ids, default=0) >= meta["vocab"]:
        raise TrainError(f"{file}: ids, lengths and the target's vocabulary do not fit each other")
    writer, at = ShardWriter(out, "packed", meta), 0
    for i, (p, a) in enumerate(lengths):
        writer.write(Job(f"packed-{i}", ids[at:at + p], 0, temp[i], "packed", ids[at + p:at + p + a]))
        at += p + a
    writer.close()
    return len(lengths)

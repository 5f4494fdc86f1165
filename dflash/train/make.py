"""The `data` command: prompts, user turns and answers by the target, and folders for `eval`.

Owns: which jobs are made and what becomes of them. The answers are made here in torch, or by `dgraft answers`: then
--write-prompts makes its input and --adopt takes its output."""
from __future__ import annotations

import json
import os
import sys
import time
import zlib
from collections import deque
from typing import Iterator

import torch

from .data import MIN_ANSWER, ShardWriter, read_records, unpack_answers
from .errors import TrainError
from .generate import Generator, Job, loop_start
from .prompts import Prompts
from .target import Target
from .text import Text

TURN_LIMIT, PASSAGE_LIMIT = 96, 170  # tokens of a self-written user turn; of an answer reused as a passage


def run_data(args) -> None:
    """Dispatches on the options."""
    from .target import load_target
    from .text import load_text

    text = load_text(args.target)
    if args.write_prompts:
        return write_prompts(text, args)
    if args.write_copies:
        return write_copies(text, args)
    target = load_target(args.target)
    if args.adopt:
        return adopt(target, args)
    if args.unpack:
        print(f"{unpack_answers(args.unpack, args.out, folder_meta(target, args))} records", file=sys.stderr)
        return None
    return (answer_prompts if args.prompts else make_answers)(target, text, args)


def folder_meta(target: Target, args) -> dict:
    """meta.json of a folder made with these options."""
    c = target.config
    return dict(target=os.path.basename(args.target.rstrip("/")), taps=list(args.taps), hidden=c.hidden, vocab=c.vocab)


class Maker:
    """Keeps a generator busy: template prompts, user turns the target writes, and the answers to both."""

    def __init__(self, text: Text, seed: int, limit: int, max_prompt: int, greedy_share: float, own_share: float):
        self.text, self.limit, self.max_prompt = text, limit, max_prompt
        self.greedy_share, self.own_share = greedy_share, own_share
        self.prompts = Prompts(seed)
        self.stream = iter(self.prompts)
        self.rng = self.prompts.rng
        self.tails: dict[str, list[int]] = {}
        self.count = 0

    def next_job(self, prefix: str) -> Job:
        """A new job: a template prompt to answer, or the opening of a user turn (source "turn:...")."""
        self.count += 1
        name = f"{prefix}-{self.count}"
        if self.rng.random() < self.own_share:
            head, self.tails[name] = self.text.open_user_turn(self.prompts.persona())
            return Job(name, head, TURN_LIMIT, 1.0, "turn")
        while True:
            kind, user = next(self.stream)
            ids = self.text.ask(user)
            if len(ids) <= self.max_prompt:
                return self._answer(name, ids, kind)

    def _answer(self, name: str, ids: list[int], kind: str) -> Job:
        temp = 0.0 if self.rng.random() < self.greedy_share else self.rng.choice([0.6, 0.8, 1.0])
        return Job(name, ids, self.limit, temp, kind)

    def follow(self, job: Job, stops: set[int]) -> Job | None:
        """The answer job of a finished user turn, or None where the turn is no good."""
        words, tail = job.answer, self.tails.pop(job.id)
        if not words or words[-1] not in stops or not 6 < len(words) < TURN_LIMIT or loop_start(words) is not None:
            return None
        return self._answer(job.id, job.prompt + words[:-1] + tail, "own")

    def remember(self, job: Job) -> None:
        """Keep a finished answer as a passage for later prompts."""
        if job.answer[-1] in self.text.stops and 40 < len(job.answer) < PASSAGE_LIMIT and loop_start(job.answer) is None:
            self.prompts.passages.append(self.text.decode(job.answer).strip())


def make_answers(target: Target, text: Text, args) -> None:
    """Fills one shard up to args.count records. Resumes; prints progress with time left."""
    shard = args.shard
    writer = ShardWriter(args.out, shard, folder_meta(target, args))
    done, start = len(writer.done), time.monotonic()
    if done >= args.count:
        print(f"shard {shard}: {done} records are there already", file=sys.stderr)
        return
    seed = zlib.crc32(f"{args.seed}/{shard}/{done}".encode())
    maker = Maker(text, seed, args.limit, args.max_prompt, args.greedy_share, args.own_share)
    for r in writer.done:
        maker.remember(Job(r.id, r.prompt, 0, r.temp, r.source, r.answer))
    length = max(args.max_prompt, TURN_LIMIT + 80) + max(args.limit, TURN_LIMIT)
    generator = Generator(target, args.slots, length, text.stops, seed, args.taps if args.features else None)
    queue: deque[Job] = deque()
    prefix = f"{shard}.{done}"
    made = 0

    def progress(tokens: int) -> None:
        spent = time.monotonic() - start
        left = spent * (args.count - done - made) / max(1, made)
        print(f"shard {shard}: {done + made}/{args.count} records, {tokens / spent:.0f} tokens/s, {left / 60:.0f} min left", file=sys.stderr, flush=True)

    queue.append(maker.next_job(prefix))
    try:
        for job in generator.run(queue, progress):
            if job.source == "turn":
                answer = maker.follow(job, text.stops)
                if answer and len(answer.prompt) <= args.max_prompt:
                    queue.appendleft(answer)
            elif len(job.answer) >= MIN_ANSWER:
                writer.write(job)
                maker.remember(job)
                made += 1
                if done + made >= args.count:
                    return
            while len(queue) + len(generator.live) < args.slots + 16:
                queue.append(maker.next_job(prefix))
    except KeyboardInterrupt:  # what is there of the answers is worth keeping
        for job in generator.unfinished():
            if job.source != "turn" and len(job.answer) >= 4 * MIN_ANSWER:
                writer.write(job)
        raise


def answer_prompts(target: Target, text: Text, args) -> None:
    """Greedy answers to the prompts of files, in the chat template, for `eval`. Of several turns the first is asked. The
    folder is marked, so that `train` refuses it."""
    writer = ShardWriter(args.out, args.shard, {**folder_meta(target, args), "use": "eval"})
    known = {r.id for r in writer.done}
    jobs = [Job(name, text.ask(user), args.limit, 0.0, source) for name, user, source in read_prompts(args.prompts) if name not in known]
    if not jobs:
        return
    generator = Generator(target, min(args.slots, len(jobs)), max(len(j.prompt) for j in jobs) + args.limit, text.stops, args.seed,
                          args.taps if args.features else None)
    for job in generator.run(jobs, lambda tokens: print(f"{tokens} tokens", file=sys.stderr, flush=True)):
        writer.write(job)


def read_prompts(files: list[str]) -> Iterator[tuple[str, str, str]]:
    """(id, first turn, category) of JSON lines with prompt or turns."""
    for file in files:
        with open(file, encoding="utf-8") as f:
            for number, line in enumerate(f, 1):
                try:
                    j = json.loads(line)
                    user = j["prompt"] if "prompt" in j else j["turns"][0]
                    name = str(j.get("id", j.get("question_id", f"{file}:{number}")))
                except (ValueError, KeyError, IndexError) as e:
                    raise TrainError(f"{file}: line {number}: {type(e).__name__} {e}") from e
                yield name, user, j.get("category") or os.path.splitext(os.path.basename(file))[0]


def write_prompts(text: Text, args) -> None:
    """Input for `dgraft answers`: args.count prompts as ids; with --own-turns FILE, its output for openings, the user turns
    in it come first; with --passages FILE, answers of an earlier run, those are what prompts ask to summarise or edit; with
    --openings the lines are openings of user turns instead."""
    maker = Maker(text, args.seed, args.limit, args.max_prompt, args.greedy_share, 1.0 if args.openings else 0.0)
    jobs = []
    for r in read_records(args.passages) if args.passages else ():
        maker.remember(Job(r.id, r.prompt, 0, r.temp, r.source, r.answer))
    if args.own_turns:
        tail = text.open_user_turn(None)[1]
        for r in read_records(args.own_turns):
            maker.tails[r.id] = tail
            job = maker.follow(Job(r.id, r.prompt, 0, 1.0, "turn", r.answer), text.stops)
            if job and len(job.prompt) <= args.max_prompt:
                jobs.append(job)
    while len(jobs) < args.count:
        jobs.append(maker.next_job(f"{args.shard}.{args.seed}{'o' if args.openings else 'p'}"))
    try:
        with open(args.write_prompts, "w", encoding="utf-8") as f:
            for j in jobs[:args.count]:
                f.write(json.dumps(dict(id=j.id, prompt=j.prompt, temp=j.temp, source=j.source)) + "\n")
    except OSError as e:
        raise TrainError(f"{args.write_prompts}: {e}") from e


def write_copies(text: Text, args) -> None:
    """Input for --adopt without a target's pass: args.count prompts with answers that are known, since they copy. They are
    marked as sampled (temp 1), so that nothing is measured on them."""
    maker = Maker(text, args.seed, args.limit, args.max_prompt, 0.0, 0.0)
    for r in read_records(args.passages) if args.passages else ():
        maker.remember(Job(r.id, r.prompt, 0, r.temp, r.source, r.answer))
    made, stop = 0, min(text.stops)
    try:
        with open(args.write_copies, "w", encoding="utf-8") as f:
            for kind, user, answer in maker.prompts.copies():
                prompt, ids = text.ask(user), text.encode(answer) + [stop]
                if len(prompt) <= args.max_prompt and MIN_ANSWER <= len(ids) <= args.limit:
                    f.write(json.dumps(dict(id=f"{args.shard}.{args.seed}c-{made}", prompt=prompt, answer=ids, temp=1.0, source=kind)) + "\n")
                    made += 1
                if made == args.count:
                    return
    except OSError as e:
        raise TrainError(f"{args.write_copies}: {e}") from e


@torch.no_grad()
def adopt(target: Target, args) -> None:
    """Takes the output of `dgraft answers` into a shard; features are computed and stored, which on a CPU is faster than to
    compute them at every visit as soon as a record is visited twice."""
    writer = ShardWriter(args.out, args.shard, folder_meta(target, args))
    known = {r.id for r in writer.done}
    records = [r for r in read_records(args.adopt, max_tokens=target.config.context) if r.id not in known and len(r.answer) >= MIN_ANSWER]
    start = time.monotonic()
    for i, r in enumerate(records):
        job = Job(r.id, r.prompt, 0, r.temp, r.source, r.answer)
        if args.features:
            final, taps, _ = target.forward(torch.tensor([r.prompt + r.answer[:-1]]), args.taps)
            job.features = torch.cat([taps[0], final[0]], -1).to(torch.bfloat16)
        writer.write(job)
        if i % 100 == 99:
            left = (time.monotonic() - start) / (i + 1) * (len(records) - i - 1)
            print(f"{i + 1} of {len(records)} records, {left / 60:.0f} min left", file=sys.stderr, flush=True)

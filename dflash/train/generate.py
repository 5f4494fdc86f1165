"""Answers by the target itself, in torch: many sequences at once on a slot cache, greedy or sampled.

Owns: the loop over jobs. `dgraft answers` does the same without Python and is the faster way on a CPU; both read and
write the same lines. Here the features of the drafters can be kept on the way, since they are computed anyway."""
from __future__ import annotations

import time
from collections import Counter, deque
from dataclasses import dataclass, field
from typing import Callable, Iterable, Iterator

import torch
import torch.nn.functional as F

from .errors import TrainError
from .target import SlotCache, Target, step

LOOP_GRAM, LOOP_TIMES = 4, 5  # a text loops where one 4-gram is seen for the 5th time


@dataclass
class Job:
    """One sequence to continue. After it ran, `answer` holds the new ids and `features` [n, (T+1)*H] the kept rows of
    all positions but the last (taps, then the final-normed stream), where asked for."""

    id: str
    prompt: list[int]
    limit: int
    temp: float
    source: str
    answer: list[int] = field(default_factory=list)
    features: torch.Tensor | None = None
    grams: Counter = field(default_factory=Counter)


def loop_start(answer: list[int]) -> int | None:
    """Index at which the answer begins to loop (where the repeated 4-gram starts for the 5th time), or None."""
    seen: Counter = Counter()
    for i in range(len(answer) - LOOP_GRAM + 1):
        gram = tuple(answer[i:i + LOOP_GRAM])
        seen[gram] += 1
        if seen[gram] >= LOOP_TIMES:
            return i
    return None


class Generator:
    """Runs jobs through `slots` slots; jobs longer than `length` tokens in all are refused."""

    def __init__(self, target: Target, slots: int, length: int, stops: set[int], seed: int, taps: tuple[int, ...] | None = None):
        self.target, self.slots, self.length, self.stops, self.taps = target, slots, length, stops, taps
        self.cache = SlotCache(target, slots, length)
        self.noise = torch.Generator().manual_seed(seed)
        width = 0 if taps is None else (len(taps) + 1) * target.config.hidden
        self.kept = torch.zeros(slots, length, width, dtype=torch.bfloat16)
        self.live: list[Job] = []
        self.token = torch.zeros(slots, dtype=torch.long)
        self.pos = torch.zeros(slots, dtype=torch.long)
        self.tokens = 0

    def run(self, jobs: Iterable[Job], progress: Callable[[int], None] | None = None) -> Iterator[Job]:
        """Yields finished jobs, in the order in which they end. A consumer may append to a deque passed as `jobs`."""
        queue = jobs if isinstance(jobs, deque) else deque(jobs)
        last = time.monotonic()
        while queue or self.live:
            if queue and (len(self.live) <= self.slots - min(16, self.slots) or len(queue) < 16):
                yield from self._fill(queue)
            if self.live:
                yield from self._step()
            if progress and time.monotonic() - last > 20:
                last = time.monotonic()
                progress(self.tokens)

    def unfinished(self) -> Iterator[Job]:
        """What the live jobs have so far, when the loop was left early: answers that break off."""
        while self.live:
            yield self._retire(len(self.live) - 1)

    # ---- one round ----

    def _fill(self, queue: deque) -> Iterator[Job]:
        fresh = [queue.popleft() for _ in range(min(len(queue), self.slots - len(self.live)))]
        for job in fresh:
            if not job.prompt or len(job.prompt) + job.limit > self.length:
                raise TrainError(f"job {job.id}: {len(job.prompt)} + {job.limit} tokens do not fit into {self.length}")
        fresh.sort(key=lambda j: len(j.prompt))  # so that a group pads little
        for i in range(0, len(fresh), 8):
            yield from self._prefill(fresh[i:i + 8])

    def _prefill(self, group: list[Job]) -> Iterator[Job]:
        width = max(len(j.prompt) for j in group)
        ids = torch.zeros(len(group), width, dtype=torch.long)
        for r, job in enumerate(group):
            ids[r, :len(job.prompt)] = torch.tensor(job.prompt)
        final, tapped, cache = self.target.forward(ids, self.taps or (), keep_kv=True)
        last = torch.stack([final[r, len(j.prompt) - 1] for r, j in enumerate(group)])
        drawn = self._draw(last, group)
        for r, job in enumerate(group):
            slot, n = len(self.live), len(job.prompt)
            self.cache.load(slot, cache, r, n)
            if self.taps is not None:
                self.kept[slot, :n] = torch.cat([tapped[r, :n], final[r, :n]], -1)
            self.live.append(job)
            self.token[slot], self.pos[slot] = drawn[r], n
            if self._append(job, int(drawn[r])):
                yield self._retire(slot)

    def _step(self) -> Iterator[Job]:
        n = len(self.live)
        final, tapped = step(self.target, self.cache, self.token[:n], self.pos[:n], self.taps or ())
        if self.taps is not None:
            self.kept[torch.arange(n), self.pos[:n]] = torch.cat([tapped, final], -1).to(torch.bfloat16)
        drawn = self._draw(final, self.live)
        self.token[:n], self.pos[:n] = drawn, self.pos[:n] + 1
        self.tokens += n
        for slot in range(n - 1, -1, -1):  # from the top, since retiring moves the last slot down
            if self._append(self.live[slot], int(drawn[slot])):
                yield self._retire(slot)

    def _draw(self, final: torch.Tensor, jobs: list[Job]) -> torch.Tensor:
        """Next tokens [n]: the argmax, or a draw by Gumbel noise at the job's temperature."""
        logits = self.target.logits(final).float()
        best = logits.argmax(-1)
        hot = [i for i, j in enumerate(jobs) if j.temp > 0]
        if hot:
            temp = torch.tensor([jobs[i].temp for i in hot])[:, None]
            noise = torch.empty(len(hot), logits.shape[1]).exponential_(generator=self.noise)
            best[hot] = (F.softmax(logits[hot] / temp, -1) / noise).argmax(-1)
        return best

    def _append(self, job: Job, token: int) -> bool:
        """Adds a token; True when the job is done: stop token, limit, or a loop."""
        job.answer.append(token)
        if token in self.stops or len(job.answer) >= job.limit:
            return True
        if len(job.answer) >= LOOP_GRAM:
            gram = tuple(job.answer[-LOOP_GRAM:])
            job.grams[gram] += 1
            return job.grams[gram] >= LOOP_TIMES
        return False

    def _retire(self, slot: int) -> Job:
        job, last = self.live[slot], len(self.live) - 1
        if self.taps is not None:
            job.features = self.kept[slot, :len(job.prompt) + len(job.answer) - 1].clone()
        if slot != last:
            n = int(self.pos[last])
            self.cache.move(last, slot, n)
            self.kept[slot, :n] = self.kept[last, :n]
            self.live[slot], self.token[slot], self.pos[slot] = self.live[last], self.token[last], self.pos[last]
        self.live.pop()
        return job

"""Unit tests of the training pipeline: `python -m unittest dflash.train.test_train` (part of `make train-smoke`)."""
from __future__ import annotations

import argparse
import json
import math
import os
import resource
import signal
import tempfile
import unittest
from collections import Counter
from dataclasses import replace
from types import SimpleNamespace

import torch
import torch.nn.functional as F

from . import smoke
from .batch import Batch, Order, copy_sources
from .copying import attention_of, dflash_looks, eagle_looks, lookers, missed, set_dflash, set_eagle, teach_where, where_to_look
from .data import Folder, Record, ShardWriter, pack_answers, read_records, unpack_answers
from .draft import DFlash, check_target, default_taps, load_dflash, new_config, warm_start
from .eagle import Eagle3, EagleObjective, maps, new_eagle_config, warm_start_eagle
from .errors import TrainError
from .export import body, reduced_head, write_checkpoint
from .generate import Generator, Job, loop_start
from .losses import SoftCrossEntropy, Vocabulary, decay, dpace, teacher
from .objective import DFlashObjective, Options, Stats, copying, walk
from .prompts import Prompts
from .setup import draft_ids, run_ids
from .target import Target, load_target, unpermute
from .train import Run, summary

META = dict(target="toy", taps=[1, 3, 5], hidden=64, vocab=smoke.VOCAB)


def toy_target(seed: int = 1) -> Target:
    """The smoke run's shape with random weights."""
    g = torch.Generator().manual_seed(seed)
    weights = {n: torch.rand(s, generator=g) + 0.5 if len(s) == 1 else torch.randn(s, generator=g) * 0.15 for n, s in smoke.weight_shapes().items()}
    return Target(smoke.CONFIG, weights.get)


def toy_batch(target: Target, taps, n: int = 24, start: int = 6) -> Batch:
    """One record of n tokens whose answer begins at `start`."""
    ids = torch.randint(3, 150, (1, n), generator=torch.Generator().manual_seed(4))
    final, tapped, _ = target.forward(ids[:, :-1], taps)
    return Batch(ids, tapped, final, torch.tensor([start]), torch.tensor([n]))


class Losses(unittest.TestCase):
    def test_value_and_gradient_are_autograds(self):
        torch.manual_seed(0)
        x, w, bias = torch.randn(300, 8, requires_grad=True), torch.randn(20, 8), torch.randn(20)
        labels, row, weight = torch.softmax(torch.randn(50, 20), -1), torch.randint(0, 50, (300,)), torch.rand(300)
        plain = -(labels[row] * torch.log_softmax(x @ w.t() + bias, -1)).sum(-1)
        (plain * weight).sum().backward()
        want, x.grad = x.grad.clone(), None
        loss, ce, hit = SoftCrossEntropy.apply(x, w, bias, labels, row, weight)
        loss.backward()
        torch.testing.assert_close(ce, plain.detach(), atol=1e-5, rtol=1e-5)
        torch.testing.assert_close(x.grad, want, atol=1e-5, rtol=1e-4)
        torch.testing.assert_close(hit, ((x @ w.t() + bias).argmax(-1) == labels[row].argmax(-1)).float())

    def test_gradient_of_a_trained_head(self):
        torch.manual_seed(0)
        x, w = torch.randn(300, 8), torch.randn(20, 8, requires_grad=True)
        labels, row, weight = torch.softmax(torch.randn(300, 20), -1), torch.arange(300), torch.rand(300)
        (-(labels * torch.log_softmax(x @ w.t(), -1)).sum(-1) * weight).sum().backward()
        want, w.grad = w.grad.clone(), None
        SoftCrossEntropy.apply(x.requires_grad_(), w, torch.zeros(20), labels, row, weight)[0].backward()
        torch.testing.assert_close(w.grad, want, atol=1e-4, rtol=1e-4)

    def test_weights(self):
        torch.testing.assert_close(dpace(torch.tensor([0.5, 0.2]), torch.ones(2), 0.5), torch.tensor([0.75 + 0.45, 0.45]))
        torch.testing.assert_close(decay(3, 2.0), torch.tensor([0.0, 1.0, 0.60653066]))

    def test_labels_mix_distribution_and_argmax(self):
        head = torch.eye(4)
        y = teacher(torch.tensor([[0.0, 2.0, 0.0, 9.0]]), head[:3], torch.zeros(3), 0.25, 1.0)
        p = torch.softmax(torch.tensor([0.0, 2.0, 0.0]), -1)
        torch.testing.assert_close(y[0], 0.75 * p + torch.tensor([0.0, 0.25, 0.0]))

    def test_vocabulary(self):
        v = Vocabulary(Counter({7: 5, 3: 3, 9: 1}), 12, 4, 3)
        self.assertEqual(v.ids.tolist(), [0, 3, 7, 9])
        ids, bias = v.draw(torch.Generator().manual_seed(0))
        self.assertEqual(len(set(ids.tolist())), 7)
        self.assertAlmostEqual(float(bias[-1]), torch.log(torch.tensor(8 / 3)).item(), places=5)


class Networks(unittest.TestCase):
    def setUp(self):
        self.target = toy_target()

    def test_blocks_see_only_what_came_before(self):
        torch.manual_seed(0)
        draft = DFlash(new_config(self.target, 2, (1, 3, 5), 6, 159))
        b = toy_batch(self.target, draft.taps)
        anchor = torch.tensor([[6, 11, 19]])
        rows = draft(draft.block_input(self.target.embed, b.ids.gather(1, anchor), 6), anchor, draft.context(b.taps))
        for i, s in enumerate(anchor[0].tolist()):
            one = draft(draft.block_input(self.target.embed, b.ids[:, s:s + 1], 6), torch.tensor([[s]]), draft.context(b.taps[:, :s]))
            torch.testing.assert_close(rows[0, i], one[0, 0], atol=2e-5, rtol=1e-4)

    def test_causal_rows_do_not_see_what_follows(self):
        torch.manual_seed(0)
        for causal in (False, True):
            draft = DFlash(new_config(self.target, 2, (1, 3, 5), 6, 159, causal))
            b = toy_batch(self.target, draft.taps)
            anchor = torch.tensor([[6, 11, 19]])
            wide, narrow = (draft(draft.block_input(self.target.embed, b.ids.gather(1, anchor), width), anchor, draft.context(b.taps)) for width in (6, 3))
            self.assertEqual(causal, torch.allclose(wide[:, :, :3], narrow, atol=2e-5, rtol=1e-4))

    def test_rows_behind_another_token_do_not_count(self):
        draft = DFlash(new_config(self.target, 1, (1, 3, 5), 4, 159))
        b = toy_batch(self.target, draft.taps)  # random ids: the target would have chosen hardly any of them
        objective = DFlashObjective(draft, self.target, Vocabulary(Counter(), 160, 160, 0), Options((4,), 400), torch.float32)
        objective.seed(1)
        first = objective.loss(b)[1].rows
        best = (b.final[0] @ self.target.head.t()).argmax(-1)
        follows = best == b.ids[0, 1:]
        roots = range(6, 23)
        self.assertEqual(first[1].item(), len(roots))
        self.assertEqual(first[2].item(), sum(bool(follows[r]) for r in roots if r + 2 < 24))

    def test_anchors_in_the_prompt(self):
        draft = DFlash(new_config(self.target, 1, (1, 3, 5), 4, 159))
        b = toy_batch(self.target, draft.taps, 90, 60)
        for share, low in ((0.0, 60), (0.5, 32)):
            objective = DFlashObjective(draft, self.target, Vocabulary(Counter(), 160, 160, 0), Options((4,), 80, prompt=share), torch.float32)
            objective.seed(1)
            anchor, real = objective.anchors(b, 20)
            self.assertTrue(bool(real.all()) and int(anchor.min()) >= low and int(anchor.max()) < 89)
            self.assertEqual(int((anchor < 60).sum()), int(20 * share))

    def test_eagle_steps_are_chains(self):
        torch.manual_seed(0)
        head = Eagle3(new_eagle_config(self.target, (1, 3, 4), 96, 100), torch.arange(100) + 20)
        b = toy_batch(self.target, head.taps)
        full = head.unroll(b.taps, self.target.embed, b.ids, 5, 3)
        for p in (5, 9, 17):
            one = head.unroll(b.taps[:, :p + 1], self.target.embed, b.ids[:, :p + 4], p, 3)
            for t in range(3):
                torch.testing.assert_close(full[t][:, p - 5], one[t][:, 0], atol=2e-5, rtol=1e-4)

    def test_warm_start_passes_the_last_tap_on(self):
        draft = DFlash(new_config(self.target, 2, (1, 3, 5), 6, 159))
        b = toy_batch(self.target, draft.taps)
        warm_start(draft, self.target, b.taps[0])
        last = b.taps[0, :, -64:]
        self.assertLess(float((draft.fc(b.taps)[0] - last).norm() / last.norm()), 0.05)
        torch.testing.assert_close(draft.layers[0].mlp.down_proj.weight, self.target.layer[6].down)

    def test_learning_lowers_the_loss(self):
        torch.manual_seed(0)
        draft = DFlash(new_config(self.target, 1, (1, 3, 5), 4, 159))
        eagle = Eagle3(new_eagle_config(self.target, (1, 3, 4), 96, 120), torch.arange(120) + 20)
        warm_start_eagle(eagle, self.target)
        for objective, taps in ((DFlashObjective(draft, self.target, Vocabulary(Counter(), 160, 160, 0), Options((4,), 64), torch.float32), draft.taps),
                                (EagleObjective(eagle, self.target, 3, 0.8, 0.5, 1.0), eagle.taps)):
            b = toy_batch(self.target, taps)
            optimizer = torch.optim.AdamW(objective.module.parameters(), lr=3e-3)
            losses = []
            for step in range(12):
                objective.seed(1)
                loss, stats = objective.loss(b)
                self.assertTrue(all(p.grad is None or bool(torch.isfinite(p.grad).all()) for p in objective.module.parameters()))
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                losses.append(float(loss.detach()))
            self.assertLess(losses[-1], 0.8 * losses[0])
            self.assertGreater(float(stats.rows.sum()), 10)

    def test_copy_sources_are_the_longest_and_latest_matches(self):
        ids = torch.tensor([[5, 1, 2, 3, 4, 1, 2, 3, 4, 9, 2, 3, 4, 7, 3, 4, 7]])
        want = torch.zeros_like(ids)
        want[0, [7, 8, 12, 16]] = torch.tensor([3, 4, 8, 13])
        torch.testing.assert_close(copy_sources(ids), want)
        rows, at = where_to_look(ids)  # of matches of two: row i drafts token i + 2, and should look where that token is next
        self.assertEqual([int(ids[0, r + 2]) for r in rows], [int(ids[0, a + 1]) for a in at])
        self.assertIn(5, rows.tolist())

    def repeats(self, taps):
        """A loader of texts said twice; a record is a seed."""
        def batch(records) -> Batch:
            part = torch.randint(20, 44, (1, 14), generator=torch.Generator().manual_seed(records[0]))
            ids = torch.cat([part, part], 1)
            final, tapped, _ = self.target.forward(ids[:, :-1], taps)
            return Batch(ids, tapped, final, torch.tensor([6]), torch.tensor([28]))
        return SimpleNamespace(batch=batch)

    def lost(self, drafter, look) -> list[float]:
        a = attention_of(drafter)
        return [float(missed(drafter, a.q_proj.weight[q], a.k_proj.weight[k], look, g).detach().mean()) for g, (q, k) in enumerate(lookers(drafter))]

    def test_a_head_is_taught_to_copy(self):
        torch.manual_seed(0)
        head = Eagle3(new_eagle_config(self.target, (1, 3, 4), 96, 120), torch.arange(120) + 20)
        warm_start_eagle(head, self.target)
        texts = self.repeats(head.taps)
        unseen = texts.batch([1000])
        look = lambda b: eagle_looks(head, self.target.embed, b)
        before = self.lost(head, look(unseen))
        teach_where(head, look, texts, list(range(100)), 10, steps=100)
        self.assertLess(self.lost(head, look(unseen))[0], before[0] - 0.7)
        set_eagle(head, self.target.embed, unseen)
        a = head.midlayer.self_attn
        x = torch.cat([head.midlayer.input_layernorm(self.target.embed[unseen.ids[0, 1:]]), torch.zeros(27, 64)], -1)
        said = a.o_proj.weight[:, :head.head_dim] @ (a.v_proj.weight[:head.head_dim] @ x.t())
        best = (self.target.embed @ said).argmax(0)
        self.assertGreater(float((best == unseen.ids[0, 1:]).float().mean()), 0.9)

    def test_a_block_drafter_is_taught_to_copy(self):
        torch.manual_seed(0)
        draft = DFlash(new_config(self.target, 1, (1, 3, 5), 8, 3, True))
        texts = self.repeats(draft.taps)
        unseen = texts.batch([1000])
        warm_start(draft, self.target, unseen.taps[0])
        look = lambda b: dflash_looks(draft, self.target.embed, b)
        seen = look(unseen)
        for g, (rows, at) in enumerate(seen.where):  # group g looks where the token g + 1 behind the row's is
            self.assertGreater(len(rows), 8)
            for r, i in zip(rows.tolist(), at.tolist()):
                self.assertLess(i, r)
                self.assertEqual(int(unseen.ids[0, i]), int(unseen.ids[0, r + 1 + g]))
        before = self.lost(draft, seen)
        teach_where(draft, look, texts, list(range(100)), 10, steps=100)
        after = self.lost(draft, look(unseen))
        self.assertLess(after[0], before[0] - 0.5)
        self.assertLess(sum(after), sum(before))

        def telling(records) -> Batch:  # features that tell their tokens
            b = texts.batch(records)
            last = self.target.embed[b.ids[:, :27]]
            return replace(b, taps=torch.cat([b.taps[..., :-last.shape[-1]], last], -1))
        set_dflash(draft, self.target.embed, SimpleNamespace(batch=telling), list(range(100)))
        unseen = telling([1000])
        a, (group, hd) = attention_of(draft), (draft.heads // draft.kv_heads, draft.head_dim)
        self.assertEqual(float(a.o_proj.weight[:, hd:group * hd].abs().max().detach()) if group > 1 else 0.0, 0.0)
        said = a.o_proj.weight[:, :hd] @ (a.v_proj.weight[:hd] @ draft.hidden_norm(draft.fc(unseen.taps[0])).t())
        score = F.cosine_similarity(self.target.embed[20:44, :, None], said[None], 1)  # of the tokens that these texts are made of
        self.assertGreater(float((score.argmax(0) + 20 == unseen.ids[0, :27]).float().mean()), 0.8)

    def test_the_lesson_where_to_look_counts_what_was_attended_to(self):
        ids = torch.tensor([[5, 1, 2, 3, 4, 9, 1, 2, 3, 4, 7, 8]])
        b = Batch(ids, None, None, torch.tensor([1]), torch.tensor([12]))
        anchor, real = torch.tensor([[3, 8, 10]]), torch.tensor([[True, True, True]])  # only that at 8 has a repeat before it
        seen = torch.full((1, 2, 3, 11), 0.01)
        seen[0, 0, 1, 4], seen[0, 1, 1, 5] = 0.5, 0.25
        self.assertAlmostEqual(float(copying(b, seen, anchor, real)), (math.log(2) + math.log(4)) / 2, places=5)
        self.assertEqual(float(copying(b, seen, anchor, real & False)), 0.0)

    def test_batched_answers_are_those_of_single_passes(self):
        jobs = [Job(str(i), torch.randint(3, 150, (3 + i,), generator=torch.Generator().manual_seed(i)).tolist(), 9, 0.0, "") for i in range(7)]
        for job in Generator(self.target, 4, 32, set(), 0, (1, 3)).run(jobs):
            ids = list(job.prompt)
            for token in job.answer:
                final, taps, _ = self.target.forward(torch.tensor([ids]), (1, 3))
                self.assertEqual(int(self.target.logits(final[0, -1:]).argmax()), token)
                ids.append(token)
            want = torch.cat([taps[0], final[0]], -1)
            torch.testing.assert_close(job.features.float(), want, atol=0.05, rtol=0.02)

    def test_jobs_that_were_left_keep_what_they_have(self):
        jobs = [Job(str(i), [5, 6, 7 + i], 9 + i, 0.0, "") for i in range(3)]
        generator = Generator(self.target, 4, 32, set(), 0, (1, 3))
        done = next(generator.run(jobs))
        left = list(generator.unfinished())
        self.assertEqual((done.id, sorted(j.id for j in left)), ("0", ["1", "2"]))
        for job in left:
            self.assertEqual((len(job.answer), len(job.features)), (9, 3 + 9 - 1))
            self.assertFalse(bool((job.features[-1] == 0).all()))

    def test_checkpoints_of_another_target_are_refused(self):
        draft = DFlash(new_config(self.target, 1, (1, 3), 4, 159))
        with tempfile.TemporaryDirectory() as d:
            write_checkpoint(f"{d}/x", {**draft.config, "vocab_size": 99}, body(draft))
            with self.assertRaisesRegex(TrainError, "vocab_size is 99, the target has 160"):
                load_dflash(f"{d}/x", self.target)
            tensors = body(draft)
            del tensors["norm.weight"]
            write_checkpoint(f"{d}/y", draft.config, tensors)
            with self.assertRaisesRegex(TrainError, "norm.weight is missing"):
                load_dflash(f"{d}/y", self.target)
        with self.assertRaisesRegex(TrainError, "feature layer 8 is outside 0..7"):
            new_config(self.target, 1, (1, 8), 4, 159)
        with self.assertRaisesRegex(TrainError, "num_target_layers is 30"):
            check_target({"num_target_layers": 30}, self.target, "d")

    def test_maps(self):
        m = maps(torch.tensor([2, 5, 9]), 10)
        self.assertEqual(m["d2t"].tolist(), [2, 4, 7])
        self.assertEqual(m["t2d"].nonzero()[:, 0].tolist(), [2, 5, 9])
        rows = torch.arange(20).view(10, 2).float()
        head = reduced_head(rows, torch.tensor([2, 5, 9]), True)
        self.assertEqual(head["lm_head.weight"].tolist(), [[4, 5], [10, 11], [18, 19]])
        self.assertEqual(head["d2t"].tolist(), [2, 4, 7])
        self.assertEqual(list(reduced_head(rows, torch.tensor([2, 5, 9]), False)), ["d2t"])

    def test_draft_vocabularies_of_checkpoints(self):
        draft = DFlash(new_config(self.target, 1, (1, 3), 4, 159))
        ids = torch.tensor([2, 5, 9])
        with tempfile.TemporaryDirectory() as d:
            write_checkpoint(f"{d}/whole", draft.config, body(draft))
            self.assertIsNone(draft_ids(f"{d}/whole"))
            write_checkpoint(f"{d}/cut", {**draft.config, "draft_vocab_size": 3}, {**body(draft), **reduced_head(self.target.head, ids, False)})
            os.rename(f"{d}/cut/model.safetensors", f"{d}/cut/part.safetensors")
            with open(f"{d}/cut/model.safetensors.index.json", "w", encoding="utf-8") as f:
                json.dump(dict(weight_map={k: "part.safetensors" for k in [*body(draft), "d2t"]}), f)
            self.assertEqual(draft_ids(f"{d}/cut").tolist(), [2, 5, 9])
            read = load_dflash(f"{d}/cut", self.target)
            self.assertNotIn("draft_vocab_size", read.config)
            torch.testing.assert_close(read.fc.weight, draft.fc.weight.to(torch.bfloat16).float())
            os.remove(f"{d}/cut/part.safetensors")
            with self.assertRaisesRegex(TrainError, "part.safetensors"):
                load_dflash(f"{d}/cut", self.target)

    def test_default_taps(self):
        self.assertEqual(default_taps(36, 5), [1, 9, 17, 25, 33])
        self.assertEqual(default_taps(30, 5), [1, 8, 14, 20, 27])


class Targets(unittest.TestCase):
    def test_unpermute_undoes_the_converter(self):
        w = torch.arange(24.0).view(12, 2)
        there = w.view(2, 2, 3, 2).transpose(1, 2).reshape(12, 2)  # what llama.cpp's converter does to 2 heads of 6
        torch.testing.assert_close(unpermute(there, 2), w)

    def test_bad_directories(self):
        with tempfile.TemporaryDirectory() as d:
            for change, message in ((dict(model_type="gpt2"), "model_type is 'gpt2'"), (dict(model_type="llama", rope_scaling={"rope_type": "yarn"}), "scaling"),
                                    (dict(model_type="qwen3", attention_bias=True), "attention_bias")):
                with open(f"{d}/config.json", "w", encoding="utf-8") as f:
                    json.dump(change, f)
                with self.assertRaisesRegex(TrainError, message):
                    load_target(d)
        with self.assertRaisesRegex(TrainError, "does not exist"):
            load_target("/nonexistent")

    def test_missing_and_misshapen_tensors(self):
        weights = {n: torch.zeros(s) for n, s in smoke.weight_shapes().items()}
        with self.assertRaisesRegex(TrainError, "model.norm.weight is missing"):
            Target(smoke.CONFIG, {k: v for k, v in weights.items() if k != "model.norm.weight"}.get)
        weights["model.norm.weight"] = torch.zeros(63)
        with self.assertRaisesRegex(TrainError, r"shape \[63\], the config asks for \[64\]"):
            Target(smoke.CONFIG, weights.get)


class Files(unittest.TestCase):
    def setUp(self):
        self.dir = tempfile.TemporaryDirectory()
        self.path = self.dir.name
        self.addCleanup(self.dir.cleanup)

    def writer(self) -> ShardWriter:
        w = ShardWriter(self.path, "a", META)
        self.addCleanup(w.close)
        return w

    def job(self, i: int, answer=None) -> Job:
        prompt, answer = [5, 6, i + 10], answer or list(range(20, 32))
        return Job(str(i), prompt, 0, 0.0, "s", answer, torch.full((len(prompt) + len(answer) - 1, 4 * 64), float(i), dtype=torch.bfloat16))

    def test_a_shard_goes_on_after_a_kill(self):
        w = self.writer()
        w.write(self.job(0))
        w.write(self.job(1))
        with open(f"{self.path}/answers.a.jsonl", "ab") as f:
            f.write(b'{"id": "2", "prompt": [1')
        with open(f"{self.path}/features.a.bin", "ab") as f:
            f.write(b"\0" * 1000)
        w = self.writer()
        self.assertEqual([r.id for r in w.done], ["0", "1"])
        w.write(self.job(3))
        folder = Folder(self.path)
        records = folder.records()
        self.assertEqual([r.id for r in records], ["0", "1", "3"])
        for r in records:
            self.assertEqual(folder.features(r).shape, (14, 256))
            self.assertEqual(float(folder.features(r)[3, 7]), float(r.id))

    def test_loops_are_cut_and_repeats_dropped(self):
        self.assertIsNone(loop_start(list(range(50))))
        looped = list(range(20)) + [1, 2, 3, 4] * 6
        self.assertEqual(loop_start(looped), 32)
        w = self.writer()
        for i, answer in enumerate((looped, list(range(3)), list(range(9)), list(range(9)))):
            job = self.job(0, answer)
            job.id = str(i)
            w.write(job)
        self.assertEqual([(r.id, len(r.answer)) for r in Folder(self.path).records()], [("0", 32), ("2", 9)])
        self.assertEqual(len(Folder(self.path).records(cut_loops=False)[0].answer), 44)

    def test_bad_records(self):
        for line, message in (('{"id": 1, "prompt": [], "answer": [1]}', "empty prompt"), ('{"id": 1, "prompt": [1], "answer": []}', "empty answer"),
                              ('{"id": 1, "prompt": [1]}', "KeyError"), ("{", "line 1"), ('{"id": 1, "prompt": [1], "answer": [1, 2, 3, 4]}', "has 5 tokens")):
            with open(f"{self.path}/answers.x.jsonl", "w", encoding="utf-8") as f:
                f.write(line + "\n")
            with self.assertRaisesRegex(TrainError, message):
                list(read_records(f"{self.path}/answers.x.jsonl", max_tokens=4))

    def test_folders_of_another_target_or_other_taps(self):
        self.writer()
        with self.assertRaisesRegex(TrainError, "hidden is 64, this run has 32"):
            ShardWriter(self.path, "b", {**META, "hidden": 32})
        with open(f"{self.path}/meta.json", "w", encoding="utf-8") as f:
            json.dump({**META, "vocab": 100}, f)
        with self.assertRaisesRegex(TrainError, "vocabulary 100"):
            Folder(self.path).check(toy_target())

    def test_packing(self):
        w = self.writer()
        for i in range(3):
            w.write(self.job(i))
        pack_answers(Folder(self.path), f"{self.path}/p.npz")
        self.assertEqual(unpack_answers(f"{self.path}/p.npz", f"{self.path}/again", META), 3)
        pairs = lambda path: [(r.prompt, r.answer) for r in Folder(path).records()]
        self.assertEqual(pairs(self.path), pairs(f"{self.path}/again"))
        with self.assertRaisesRegex(TrainError, "do not fit"):
            unpack_answers(f"{self.path}/p.npz", f"{self.path}/bad", {**META, "vocab": 8})

    def test_a_full_disk_is_told(self):
        w = self.writer()
        old, handler = resource.getrlimit(resource.RLIMIT_FSIZE), signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (100, old[1]))
        try:
            with self.assertRaisesRegex(TrainError, "too large|No space"):
                w.write(self.job(0))
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, old)
            signal.signal(signal.SIGXFSZ, handler)

    def test_a_run_keeps_its_draft_vocabulary(self):
        with tempfile.TemporaryDirectory() as d:
            first = run_ids(d + "/run", lambda: torch.tensor([2, 5, 7]))
            later = run_ids(d + "/run", lambda: torch.tensor([2, 6, 7]))
        self.assertEqual(first.tolist(), [2, 5, 7])
        self.assertEqual(later.tolist(), [2, 5, 7])

    def test_order_resumes(self):
        records = [Record(str(i), [i], [1] * (i + 1), "", 0) for i in range(10)]
        a, b = Order(records, 3, 0, 2), Order(records, 3, 0, 2)
        a.take(7)
        b.restore(a.state())
        self.assertEqual([r.id for r in a.take(4)], [r.id for r in b.take(4)])
        with self.assertRaisesRegex(TrainError, "4 processes"):
            Order(records[:3], 3, 0, 4)


class Training(unittest.TestCase):
    def test_nan_stops_and_keeps_the_state(self):
        class Sick:
            module = torch.nn.Linear(2, 2)

            def seed(self, value):
                pass

            def loss(self, batch):
                return self.module.weight.sum() * float("nan"), Stats()

        class NoLoader:
            device = "cpu"

            def batch(self, records):
                return None

        with tempfile.TemporaryDirectory() as d:
            args = argparse.Namespace(lr=1e-3, weight_decay=0, seed=1, records=1, together=1, dtype="f32", steps=5, minutes=1, warmup=1, cooldown=0.1,
                                      average=0.9, clip=1.0, save_seconds=9, report=1, validate=1)
            run = Run(Sick(), NoLoader(), [Record("0", [1], [1], "", 0)], [], d, args, lambda path, info: None)
            run.save()
            with self.assertRaisesRegex(TrainError, "loss is nan"):
                run.learn()
            self.assertTrue(os.path.exists(f"{d}/state.pt"))

    def test_walk(self):
        rounds = walk([[7, 8, 1], [0, 0, 0], [0, 0, 0], [5, 0, 0]], [[0.5] * 3] * 4, [9, 7, 8, 4, 5, 6], 0, 6)
        self.assertEqual([(r.accepted, r.gained) for r in rounds], [(2, 3), (1, 2)])
        self.assertEqual(summary(rounds), (2.5, [1.0, 0.5, 0.0]))

    def test_prompts_are_seeded_and_not_the_held_out_ones(self):
        first, second = iter(Prompts(4, ["a passage"])), iter(Prompts(4, ["a passage"]))
        texts = [next(first) for _ in range(400)]
        self.assertEqual(texts, [next(second) for _ in range(400)])
        self.assertEqual({k for k, _ in texts}, {"topic", "code", "function", "maths", "json", "life", "passage", "edit", "source", "records", "tools"})
        held_out, root = set(), os.path.join(os.path.dirname(__file__), "..", "..", "bench", "prompts")
        for name in os.listdir(root):
            with open(os.path.join(root, name), encoding="utf-8") as f:
                held_out |= {t for line in f if line.strip() for j in [json.loads(line)] for t in j.get("turns", [j.get("prompt")])}
        self.assertFalse(held_out & {t for _, t in texts})


if __name__ == "__main__":
    unittest.main()

"""The command line of the training pipeline. Owns: options and messages; the work is in the modules."""
from __future__ import annotations

import argparse
import os
import signal
import sys

if __package__ in (None, ""):  # run as `python dflash/train/main.py`
    sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))
    __package__ = "dflash.train"

import torch

from dflash.train.errors import TrainError


def int_list(text: str) -> tuple[int, ...]:
    """"1,8,14" -> (1, 8, 14)"""
    return tuple(int(x) for x in text.split(","))


def build_parser() -> argparse.ArgumentParser:
    """All commands and options."""
    parser = argparse.ArgumentParser(prog="dflash.train", description="Train DFlash and EAGLE-3 drafters for a Llama- or Qwen3-type target.")
    parser.add_argument("--threads", type=int, default=1, help="torch threads of this process (default 1: run one process per core)")
    commands = parser.add_subparsers(dest="command", required=True)

    _add_data(commands)
    _add_train(commands)
    _add_results(commands)
    return parser


def _add_data(commands) -> None:
    p = commands.add_parser("data", help="let the target write prompts and answers")
    p.add_argument("--target", required=True, help="Hugging Face directory or .gguf file")
    p.add_argument("--out", default="", help="data folder")
    p.add_argument("--write-prompts", metavar="FILE", help="only write --count prompts, as input of `dgraft answers`")
    p.add_argument("--openings", action="store_true", help="with it: openings of user turns for the target to write")
    p.add_argument("--own-turns", metavar="FILE", help="with it: take the user turns of this output of `dgraft answers`")
    p.add_argument("--passages", metavar="FILE", help="with it: take passages to summarise and edit from the answers in this file")
    p.add_argument("--write-copies", metavar="FILE", help="only write --count prompts whose answers copy, with the answers, as input of --adopt")
    p.add_argument("--adopt", metavar="FILE", help="take the output of `dgraft answers` into the folder")
    p.add_argument("--unpack", metavar="FILE", help="turn packed answers (.npz, see export) back into a folder")
    p.add_argument("--shard", default="0", help="name of the shard that this process fills")
    p.add_argument("--count", type=int, default=1000, help="records in this shard")
    p.add_argument("--limit", type=int, default=224, help="tokens of an answer")
    p.add_argument("--max-prompt", type=int, default=288, help="tokens of a prompt")
    p.add_argument("--slots", type=int, default=96, help="sequences at once")
    p.add_argument("--taps", type=int_list, default=(1, 8, 14, 20, 26, 27), help="feature layers (outputs of these layers)")
    p.add_argument("--no-features", dest="features", action="store_false", help="keep ids only; train recomputes the features")
    p.add_argument("--greedy-share", type=float, default=0.6, help="share of greedy answers; the others are sampled at 0.6 to 1.0")
    p.add_argument("--own-share", type=float, default=0.4, help="share of user turns that the target writes itself")
    p.add_argument("--prompts", nargs="+", help="answer these JSON-lines files (prompt or turns, id, category) instead: a folder for `eval`")
    p.add_argument("--seed", type=int, default=1)
    p.set_defaults(run=run_data)


def _add_train(commands) -> None:
    p = commands.add_parser("train", help="train a drafter on a data folder")
    _add_run_options(p)
    p.add_argument("--kind", choices=("dflash", "eagle3"), default="dflash")
    p.add_argument("--out", required=True, help="run folder; a run that was stopped goes on where it was")
    p.add_argument("--init", default="warm", help="dflash: warm (from target layers), cold, or a checkpoint folder")
    p.add_argument("--layers", type=int, default=2, help="layers of a new drafter")
    p.add_argument("--taps", type=int_list, default=None, help="feature layers of a new drafter (default: those of the data folder)")
    p.add_argument("--block", type=int, default=16, help="block size, the root included")
    p.add_argument("--mask-id", type=int, default=16, help="an id of the target's vocabulary that its texts never use")
    p.add_argument("--widths", type=int_list, default=None, help="block widths drawn from in training (default: the block size)")
    p.add_argument("--causal", action="store_true", help="rows see only the rows before them: any width then trains all rows up to it")
    p.add_argument("--prompt-share", type=float, default=0.0, help="share of anchors that may lie in the prompt")
    p.add_argument("--rows", type=int, default=768, help="block rows a record gets: anchors are rows / width")
    p.add_argument("--gamma", type=float, default=7.0, help="decay of the loss over block positions")
    p.add_argument("--dpace", type=float, default=0.0, help="alpha of D-PACE weights in place of the decay (0: off)")
    p.add_argument("--hard", type=float, default=0.5, help="share of the target's argmax in the labels; the rest is its distribution")
    p.add_argument("--copy", type=float, default=0.0, help="weight of the lesson where to look for what the text repeats (0: none)")
    p.add_argument("--copy-start", type=float, metavar="MINUTES", default=0.0, help="teach attention to copy before anything else")
    p.add_argument("--temp", type=float, default=1.0, help="temperature of that distribution")
    p.add_argument("--vocab", type=int, default=8192, help="ids in the softmax of training; eagle3: the draft vocabulary")
    p.add_argument("--extra", type=int, default=512, help="further ids drawn for every step")
    _add_recipe(p)
    p.set_defaults(run=run_train)


def _add_recipe(p: argparse.ArgumentParser) -> None:
    """Steps, rates and bookkeeping of a training run."""
    p.add_argument("--states", type=int, default=5, help="eagle3: steps of training-time test")
    p.add_argument("--inter", type=int, default=0, help="eagle3: width of the MLP (default: the target's)")
    p.add_argument("--records", type=int, default=8, help="records a step and process")
    p.add_argument("--together", type=int, default=1, help="records in one pass (1 on a CPU, more on a GPU)")
    p.add_argument("--lr", type=float, default=6e-4)
    p.add_argument("--weight-decay", type=float, default=0.0)
    p.add_argument("--clip", type=float, default=1.0)
    p.add_argument("--warmup", type=int, default=40, help="steps")
    p.add_argument("--cooldown", type=float, default=0.25, help="last share of the run over which the rate falls")
    p.add_argument("--average", type=float, default=0.98, help="decay of the running average of weights that is exported")
    p.add_argument("--steps", type=int, default=1 << 30)
    p.add_argument("--minutes", type=float, default=60.0, help="time spent in steps; a resumed run counts on")
    p.add_argument("--validate", type=int, default=100, help="steps between validations")
    p.add_argument("--val-records", type=int, default=24, help="greedy records of the held-out part that are measured")
    p.add_argument("--holdout", type=int, default=40, help="one prompt in so many is held out")
    p.add_argument("--follow", action="store_true", help="take up records that were added to the folder at every new epoch")
    p.add_argument("--report", type=int, default=10, help="steps between log lines")
    p.add_argument("--dtype", choices=("f32", "bf16"), default="f32", help="of the matrix products; f32 is faster on a CPU without AMX")
    p.add_argument("--save-seconds", type=float, default=120.0, help="time between writes of state.pt")
    p.add_argument("--seed", type=int, default=1)


def _add_results(commands) -> None:
    p = commands.add_parser("eval", help="acceptance of a drafter on a folder of greedy answers")
    _add_run_options(p)
    p.add_argument("--drafter", required=True, help="checkpoint folder")
    p.add_argument("--width", type=int, default=None, help="rows of a round, the root included (default: the block size; eagle3: 6)")
    p.add_argument("--vocab", type=int, default=0, help="dflash: try the head cut to this many ids, the most frequent of --vocab-data")
    p.add_argument("--vocab-data", help="data folder whose answers are counted for --vocab")
    p.add_argument("--holdout", type=int, default=40, help="of a folder to train on, measure the held-out part, as train's option says")
    p.add_argument("--no-shuffle", dest="shuffle", action="store_false", help="leave out the run with shuffled features")
    p.add_argument("--reference", help="also record logits and drafts for other runtimes into this folder")
    p.set_defaults(run=run_eval)

    p = commands.add_parser("export", help="write a run's averaged weights, or a checkpoint, in the published layout")
    p.add_argument("--target", required=True, help="Hugging Face directory or .gguf file")
    p.add_argument("--drafter", required=True, help="checkpoint folder, such as RUN/best")
    p.add_argument("--out", required=True, help="folder to write")
    p.add_argument("--vocab", type=int, default=0, help="dflash: draft only this many ids (d2t), the most frequent of --vocab-data")
    p.add_argument("--with-head", action="store_true", help="also write the target's head rows of these ids, for runtimes that do not take them from the target")
    p.add_argument("--vocab-data", help="data folder whose answers are counted for --vocab")
    p.add_argument("--ids", help="also pack the data folder's answers as uint16 ids into this .npz file")
    p.set_defaults(run=run_export)

    p = commands.add_parser("plot", help="curve.csv of a run as a picture")
    p.add_argument("--run-folder", required=True)
    p.add_argument("--out", required=True, help=".png")
    p.set_defaults(run=run_plot)


def _add_run_options(p: argparse.ArgumentParser) -> None:
    p.add_argument("--target", required=True, help="Hugging Face directory or .gguf file")
    p.add_argument("--data", required=True, help="data folder")
    p.add_argument("--device", default="cpu", help="cpu, cuda or cuda:N; under torchrun every process takes its own")
    p.add_argument("--context", type=int, default=1024, help="longest record, in tokens")


def run_data(args: argparse.Namespace) -> None:
    """The `data` command."""
    from dflash.train.make import run_data as run

    run(args)


def run_train(args: argparse.Namespace) -> None:
    """The `train` command."""
    from dflash.train.setup import start_run

    start_run(args).learn()


def run_eval(args: argparse.Namespace) -> None:
    """The `eval` command."""
    from dflash.train.evaluate import evaluate_folder

    print(evaluate_folder(args))


def run_export(args: argparse.Namespace) -> None:
    """The `export` command."""
    from dflash.train.setup import export_checkpoint

    export_checkpoint(args)


def run_plot(args: argparse.Namespace) -> None:
    """The `plot` command."""
    from dflash.train.plot import plot_curve

    plot_curve(args.run_folder, args.out)


def main() -> int:
    """Runs a command; 0, or 2 after a message."""
    args = build_parser().parse_args()
    torch.set_num_threads(args.threads)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        args.run(args)
    except TrainError as e:
        print(f"dflash.train {args.command}: {e}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    return 0


if __name__ == "__main__":
    raise SystemExit(main())

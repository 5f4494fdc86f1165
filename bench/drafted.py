"""Drafted runs of dgraft and llama.cpp: the same target and DFlash drafter, greedy, block 16 as a chain.

Called by peers.sh. Four arms take turns prompt by prompt, their order rotating: each engine plainly and
drafted. Ratios are taken within a prompt; a drafted text is compared with the same engine's plain text.
"""
import argparse
import glob
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile

DRAFTS = 15  # block 16, root included


def run(command, before=""):
    done = subprocess.run(before.split() + [str(part) for part in command], capture_output=True)
    out, err = done.stdout.decode(errors="replace"), done.stderr.decode(errors="replace")
    if done.returncode:
        sys.exit("drafted.py: %s failed with status %d:\n%s" % (command[0], done.returncode, err[-2000:]))
    return out, err


def find(pattern, text, what):
    match = re.search(pattern, text)
    if not match:
        sys.exit("drafted.py: no %s in what the program printed:\n%s" % (what, text[-2000:]))
    return match


def read_prompts(n):
    """The first prompts of every file in bench/prompts, file by file in turn."""
    files = []
    for path in sorted(glob.glob("bench/prompts/*.jsonl")):
        with open(path) as lines:
            files.append([json.loads(line) for line in lines])
    turns = [one[i] for i in range(max(map(len, files))) for one in files if i < len(one)]
    return [(one["id"], one.get("prompt") or one["turns"][0]) for one in turns[:n]]


class Ours:
    name = "dgraft"

    def __init__(self, o):
        self.before = o.before
        self.command = [o.dgraft, "run", "-m", o.model, "-t", o.threads, "-n", o.predict,
                        "--compute", o.compute, "--chat", "--json"]
        self.draft = ["--draft", "dflash:" + o.drafter, "--budget", DRAFTS]

    def go(self, prompt, drafted):
        out, _ = run(self.command + ["-p", prompt["text"]] + (self.draft if drafted else []), self.before)
        answer = json.loads(out)
        return {"rate": answer["timing"]["tokens_per_second"], "text": answer["text"],
                "prompt": answer["prompt_tokens"], "accepted": answer["stats"]["acceptance_length"]}


class Llama:
    name = "llama.cpp"

    def __init__(self, o, drafter):
        self.before = o.before
        self.common = ["-m", o.model, "-t", o.threads, "-n", o.predict, "--temp", 0, "--no-escape",
                       "-c", 4096]
        self.plain = [os.path.join(o.llama, "llama-completion"), "-no-cnv", "--no-display-prompt"]
        self.drafted = [os.path.join(o.llama, "llama-speculative-simple"), "-td", o.threads, "-md", drafter,
                        "--spec-type", "draft-dflash", "--spec-draft-n-max", DRAFTS]

    def go(self, prompt, drafted):
        command = (self.drafted if drafted else self.plain) + self.common + ["-f", prompt["file"]]
        out, err = run(command, self.before)
        both = err + out
        if not drafted:
            rate = find(r"[^t] eval time =.*?([\d.]+) tokens per second", err, "speed").group(1)
            tokens = int(find(r"prompt eval time =.*?/ +(\d+) tokens", err, "prompt length").group(1))
            text = out.replace(" [end of text]", "")
            return {"rate": float(rate), "text": text, "prompt": tokens, "accepted": 1}
        rate = find(r"decoded +\d+ tokens in +[\d.]+ seconds, speed: +([\d.]+) t/s", both, "speed").group(1)
        tokens = int(find(r"encoded +(\d+) tokens", both, "prompt length").group(1))
        drawn, kept = (int(find(r"n_%s += (\d+)" % what, both, what).group(1))
                       for what in ("predict", "accept"))
        text = out.split(prompt["rendered"], 1)[-1]
        return {"rate": float(rate), "text": text, "prompt": tokens, "accepted": drawn / max(1, drawn - kept)}


def same(a, b):
    """One may have gone on for a few tokens more."""
    a, b = a.strip(), b.strip()
    return a.startswith(b) or b.startswith(a)


def spread(values):
    return "%.2f (%.2f..%.2f)" % (statistics.median(values), min(values), max(values))


def report(prompts, result):
    n = len(prompts)
    print("%d prompts, greedy, %d drafts a round; median (least..most) over prompts" % (n, DRAFTS))
    for name in ("dgraft", "llama.cpp"):
        plain, drafted = result[name, False], result[name, True]
        gain = [d["rate"] / p["rate"] for d, p in zip(drafted, plain)]
        print(name)
        print("  plain    %s tokens/s" % spread([one["rate"] for one in plain]))
        print("  drafted  %s tokens/s" % spread([one["rate"] for one in drafted]))
        print("  drafted/plain %s" % spread(gain))
        print("  tokens a round %s" % spread([one["accepted"] for one in drafted]))
        print("  text as in its own plain run %d of %d"
              % (sum(same(d["text"], p["text"]) for d, p in zip(drafted, plain)), n))
    for drafted in (False, True):
        pairs = zip(result["dgraft", drafted], result["llama.cpp", drafted])
        print("dgraft/llama.cpp, %s: %s" % ("drafted" if drafted else "plain",
                                            spread([a["rate"] / b["rate"] for a, b in pairs])))
    odd = [p["id"] for i, p in enumerate(prompts) if len({r[i]["prompt"] for r in result.values()}) > 1]
    if odd:
        print("the engines count the prompt's tokens differently: " + ", ".join(odd))


def main():
    parser = argparse.ArgumentParser()
    for option in ("dgraft", "llama", "model", "drafter", "compute"):
        parser.add_argument("--" + option, required=True)
    for option in ("threads", "prompts", "predict"):
        parser.add_argument("--" + option, type=int, required=True)
    parser.add_argument("--before", default="")  # put before every timed run
    o = parser.parse_args()
    with tempfile.TemporaryDirectory() as tmp:
        drafter = os.path.join(tmp, "drafter.gguf")
        run([o.dgraft, "convert", "-m", o.drafter, "-o", drafter, "--type", "bf16", "--tokenizer", o.model])
        prompts = []
        for name, text in read_prompts(o.prompts):
            tokens, _ = run([o.dgraft, "tokens", "-m", o.model, "--chat", "-p", text, "--json"])
            rendered = "".join(one["text"] for one in json.loads(tokens)["tokens"])
            path = os.path.join(tmp, name + ".txt")
            with open(path, "w") as f:
                f.write(rendered + "\n")  # llama.cpp drops one newline at the end of a file
            prompts.append({"id": name, "text": text, "rendered": rendered, "file": path})
        arms = [(engine, drafted) for engine in (Ours(o), Llama(o, drafter)) for drafted in (False, True)]
        result = {(engine.name, drafted): [] for engine, drafted in arms}
        for i, prompt in enumerate(prompts):
            for k in range(len(arms)):
                engine, drafted = arms[(i + k) % len(arms)]
                result[engine.name, drafted].append(engine.go(prompt, drafted))
            print("\r%d of %d prompts" % (i + 1, len(prompts)), end="", file=sys.stderr)
        print("\r", end="", file=sys.stderr)
        report(prompts, result)


if __name__ == "__main__":
    main()

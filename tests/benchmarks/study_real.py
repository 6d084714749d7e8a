#!/usr/bin/env python3
"""Helps tests/benchmarks/study_real.sh and ablations.sh: answers for fidelity, and the pages.
  study_real.py answers --task T --data DIR --evaluation DIR --model NAME --out FILE
  study_real.py page --work DIR --task T --arms "A B" --command TEXT
  study_real.py ablations --work DIR --command TEXT
  study_real.py picture --work DIR --method jacobi|mr --block N
AUP is accuracy under parallelism as in d3LLM (Qian et al., arXiv 2601.07568): of the pairs (tokens per forward ρ_i,
accuracy y_i in percent) in order of ρ, those with y_i ≥ y_1 − 5 count, and
  AUP = ρ_1 y_1 + ½ Σ_{i≥2} (ρ_i − ρ_{i−1}) (y_i W(y_i) + y_{i−1} W(y_{i−1})),   W(y) = min(exp(−α (1 − y / y_max)), 1)
with α = 3 and y_max the greatest accuracy of any model here on the task. The pairs of a model and method are greedy
decoding's (ρ = 1) and those of its block sizes; of pairs with the same ρ the most accurate counts. Fidelity compares
greedy answers with the base model's: the mean log-probability of their tokens under the base model, the share of
identical answers, and the repetition rate, the share of an answer's runs of four words or signs that occurred in it
before (mean over answers). Answers are tokenised anew, including the end of sequence if an answer has it. Differences
to the base have 95 % percentile intervals of a bootstrap over the problems. Standard library only, Python >= 3.9.
"""

import argparse
import gzip
import json
import math
import os
import pathlib
import random
import re
import statistics
import subprocess

ALPHA = 3
# The task whose prompt is the bare question, used for fidelity.
PLAIN_TASK = {"ledger": ("ledger", "ledger/test.jsonl"), "open": ("gsm8k:plain", "gsm8k/test.jsonl")}
TITLES = {"base": "base", "jacobi-forcing": "noise mask, linear schedule",
          "jf-random": "noise mask, random schedule", "cllm": "clean mask, random schedule",
          "sft": "SFT (consistency weight 0)"}
# In the tables' order.
METHODS = ("jacobi", "jacobi_shrinking", "mr", "mr_lookup", "mr_paper", "mr_repo", "prompt_lookup")


def title(arm):
    arm, _, share = arm.partition("@")
    return TITLES[arm] + (f", {float(share):.0%} of the way from the base".replace("%", " %") if share else "")


def accuracy_under_parallelism(pairs, best, alpha=ALPHA):
    """Returns the AUP of pairs (tokens per forward, accuracy in percent); `best`: y_max."""
    highest = {}
    for parallelism, accuracy in pairs:
        highest[parallelism] = max(accuracy, highest.get(parallelism, 0))
    curve = sorted(highest.items())
    curve = [(parallelism, accuracy) for parallelism, accuracy in curve if accuracy >= curve[0][1] - 5]

    def weighted(accuracy):
        return accuracy * min(math.exp(-alpha * (1 - accuracy / best)), 1) if best > 0 else 0

    area = curve[0][0] * curve[0][1]
    for (before, lower), (after, upper) in zip(curve, curve[1:]):
        area += (after - before) * (weighted(upper) + weighted(lower)) / 2
    return area


def repetition(text):
    """Returns the share of runs of four words or signs that occurred before."""
    parts = re.findall(r"\w+|[^\w\s]", text)
    runs = [tuple(parts[i:i + 4]) for i in range(len(parts) - 3)]
    return 1 - len(set(runs)) / len(runs) if runs else 0


def read_lines(path):
    path = pathlib.Path(path)
    if not path.exists():
        path = path.with_name(path.name + ".gz")
    with (gzip.open if path.suffix == ".gz" else open)(path, "rt", encoding="utf-8") as stream:
        return [json.loads(line) for line in stream]


def file_name(label):
    """Converts a task's label like the evaluation's file names."""
    return re.sub(r"[^A-Za-z0-9._=+-]", "-", label)


def write_answers(options):
    label, problems = PLAIN_TASK[options.task]
    questions = [record["question"] for record in read_lines(pathlib.Path(options.data) / problems)]
    samples = read_lines(pathlib.Path(options.evaluation) / "sweep" / options.model / f"{file_name(label)}.ar.jsonl")
    with open(options.out + ".tmp", "w", encoding="utf-8") as stream:
        for sample in samples:
            # jforge probe likelihood refuses empty answers.
            stream.write(json.dumps({"question": questions[sample["index"]], "answer": sample["text"] or " ",
                                     "index": sample["index"], "eos": sample["stop"] == "eos"}) + "\n")
    os.replace(options.out + ".tmp", options.out)


def fidelity(directory):
    """Returns by problem: text, repetition, tokens, sum of log-probabilities."""
    found = {}
    lines = read_lines(directory / "likelihood.jsonl")
    for answer, line in zip(read_lines(directory / "answers.jsonl"), lines, strict=True):
        values = line["log_probabilities"][:None if answer["eos"] else -1]
        found[answer["index"]] = {"text": answer["answer"], "repetition": repetition(answer["answer"]),
                                  "tokens": len(values), "sum": sum(values)}
    return found


def mean_log_probability(answers):
    return sum(one["sum"] for one in answers) / sum(one["tokens"] for one in answers)


def mean_repetition(answers):
    return statistics.mean(one["repetition"] for one in answers)


def paired_interval(figure, answers, others, draws=4000):
    """Returns the interval of figure(answers) − figure(others), over problems drawn with replacement."""
    draw = random.Random(1)
    places = range(len(answers))
    differences = []
    for _ in range(draws):
        drawn = draw.choices(places, k=len(places))
        differences.append(figure([answers[i] for i in drawn]) - figure([others[i] for i in drawn]))
    cuts = statistics.quantiles(differences, n=40)
    return cuts[0], cuts[-1]


def fidelity_table(work, arms):
    found = {arm: fidelity(work / "evaluation" / arm) for arm in ["base", *arms]
             if (work / "evaluation" / arm / "likelihood.jsonl").exists()}
    lines = ["| greedy answers of | mean log-probability under the base | against the base's own | equal to the base's | "
             "repetition | points against the base |", "| --- | --- | --- | --- | --- | --- |"]
    for arm, by_problem in found.items():
        answers = list(by_problem.values())
        base = [found["base"][index] for index in by_problem]
        mean, repeated = mean_log_probability(answers), mean_repetition(answers)
        difference = repetition_difference = "–"
        if arm != "base":
            low, high = paired_interval(mean_log_probability, answers, base)
            difference = f"{mean - mean_log_probability(base):+.4f} ({low:+.4f} to {high:+.4f})"
            low, high = paired_interval(mean_repetition, answers, base)
            repetition_difference = f"{100 * (repeated - mean_repetition(base)):+.1f} ({100 * low:+.1f} to {100 * high:+.1f})"
        equal = statistics.mean(one["text"] == other["text"] for one, other in zip(answers, base))
        lines.append(f"| {title(arm)} | {mean:.4f} | {difference} | {100 * equal:.1f} % | {100 * repeated:.1f} % | "
                     f"{repetition_difference} |")
    return "\n".join(lines)


def shown(value, digits=2):
    return "–" if value is None else f"{value:.{digits}f}"


def speed_cell(figures, batch):
    one = next((speed for speed in figures.get("speed") or [] if speed["batch_prompts"] == batch), {})
    up = one.get("speed_up")
    times = f"{up:.2f}× ({one['speed_up_low']:.2f}–{one['speed_up_high']:.2f})" if up is not None else "–"
    return shown(one.get("tokens_per_second"), 1), times


def speed_batches(rows):
    """Returns the measured batch sizes, or 1 and 8."""
    return sorted({speed["batch_prompts"] for *_, figures in rows for speed in figures.get("speed") or []} or {1, 8})


def speed_remarks(rows):
    found = {(speed["batch_prompts"], speed["remark"]) for *_, figures in rows for speed in figures.get("speed") or []
             if speed.get("remark")}
    return [f"\n**Speeds at batch {batch} mean little: {remark}.**" for batch, remark in sorted(found)]


def task_rows(results):
    """Returns a task's (model, method, block size, figures), greedy decoding first."""
    rows = []
    for arm, sweeps in results.items():
        for method, sweep in sweeps.items():
            if method == next(iter(sweeps)):
                rows.append((arm, "ar", "–", sweep["baseline"]))
            rows += [(arm, method, point["settings"].get("block_size", "–"), point) for point in sweep["points"]]
    return rows


def task_section(label, results):
    rows = task_rows(results)
    scorer, number = rows[0][3]["scorer"], rows[0][3]["n"]
    batches = speed_batches(rows)
    lines = [f"## {label} ({scorer}), {number} problems\n",
             "| model | method | block size | accuracy | 95 % interval | TPF | 95 % interval | "
             + " | ".join(f"tokens/s, batch {batch} | over AR" for batch in batches) + " |", "|" + " --- |" * (7 + 2 * len(batches))]
    for arm, method, block, figures in rows:
        speeds = " | ".join(cell for batch in batches for cell in speed_cell(figures, batch))
        lines.append(f"| {title(arm)} | {method} | {block} | {100 * figures['accuracy']:.1f} % | "
                     f"{100 * figures['accuracy_low']:.1f}–{100 * figures['accuracy_high']:.1f} % | {shown(figures['tpf'])} | "
                     f"{shown(figures['tpf_low'])}–{shown(figures['tpf_high'])} | {speeds} |")
    lines += speed_remarks(rows)
    best = max(100 * figures["accuracy"] for *_, figures in rows)
    lines += ["\n| model | method | AUP |", "| --- | --- | --- |"]
    for arm, sweeps in results.items():
        for method, sweep in sweeps.items():
            points = [sweep["baseline"], *sweep["points"]]
            # An answer that ends with its first token needs no forward.
            score = accuracy_under_parallelism([(one["tpf"], 100 * one["accuracy"]) for one in points if one["tpf"] is not None],
                                               best)
            lines.append(f"| {title(arm)} | {method} | {score:.1f} |")
    return "\n".join(lines)


def sweeps_of(work, arms):
    """Returns {task: {arm: {method: part of sweep.json}}}."""
    tasks = {}
    for arm in ["base", *arms]:
        for method in METHODS:
            path = work / "evaluation" / arm / f"{method}.json"
            if path.exists():
                found = json.loads(path.read_text(encoding="utf-8"))
                for part in [found, *found.get("further_tasks", [])]:
                    tasks.setdefault(part["task"], {}).setdefault(arm, {})[method] = part
    return tasks


def machine():
    match = re.search(r"^model name\s*: (.*)$", pathlib.Path("/proc/cpuinfo").read_text(encoding="utf-8"), re.MULTILINE)
    commit = subprocess.run(["git", "describe", "--always", "--dirty"], check=False, capture_output=True, text=True).stdout
    return f"- CPU: {match.group(1) if match else 'unknown'}, {os.cpu_count()} cores\n- commit: {commit.strip() or 'unknown'}"


def write_page(options):
    work, arms = pathlib.Path(options.work), options.arms.split()
    seconds = {path.name: int(path.read_text(encoding="utf-8")) for path in sorted((work / "seconds").iterdir())
               if path.name != "page"}
    print(f"# Study on a real model: {options.task}\n\n- command: `{options.command}`; configuration "
          f"launch/configs/study_real.toml\n{machine()}\n")
    for label, results in sweeps_of(work, arms).items():
        print(task_section(label, results) + "\n")
    print(f"AUP is d3LLM's accuracy under parallelism (arXiv 2601.07568), α = {ALPHA}; the pairs are greedy decoding's and "
          "those of the block sizes. Intervals are 95 %.\n")
    print(f"## Fidelity on {PLAIN_TASK[options.task][0]}\n\n{fidelity_table(work, arms)}\n")
    print("Repetition is the share of an answer's runs of four words or signs that stood in it before.\n")
    print("## Time\n\n| stage | seconds |\n| --- | --- |")
    for name, value in seconds.items():
        print(f"| {name} | {value} |")
    print(f"| all | {sum(seconds.values())} |")


def mean_and_deviation(values, digits=2):
    """Mean ± sample standard deviation."""
    if not values:
        return "–"
    spread = f" ± {statistics.stdev(values):.{digits}f}" if len(values) > 1 else ""
    return f"{statistics.mean(values):.{digits}f}{spread}"


def read_ablations(work):
    """Returns {arm: {seed: sweeps by method}} and the greatest accuracy in percent."""
    folders = sorted(path for path in (work / "evaluation").iterdir() if (path / "mr.json").exists())
    arms, best = {}, 0
    for folder in folders:
        sweeps = {method: json.loads((folder / f"{method}.json").read_text("utf-8")) for method in ("jacobi", "mr")}
        # "noise-linear@120.2": 120 steps, seed 2.
        arm, seed = re.fullmatch(r"(base|.*@\d+)(?:\.(\d+))?", folder.name).groups()
        arms.setdefault(arm, {})[seed] = sweeps
        best = max([best, *(100 * one["accuracy"] for sweep in sweeps.values() for one in [sweep["baseline"], *sweep["points"]])])
    return arms, best


def greedy_accuracy(run):
    """Returns percent; all methods give greedy decoding's tokens."""
    return 100 * run["jacobi"]["baseline"]["accuracy"]


def half_interval(values):
    """Returns half the 95 % interval of the mean, by Student's t."""
    student = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262)
    freedom, z = len(values) - 1, 1.959964
    # Beyond the table by Cornish and Fisher's expansion (Abramowitz and Stegun 26.7.5), to 1e-3.
    t = student[freedom - 1] if freedom <= len(student) else (
        z + (z ** 3 + z) / (4 * freedom) + (5 * z ** 5 + 16 * z ** 3 + 3 * z) / (96 * freedom ** 2)
        + (3 * z ** 7 + 19 * z ** 5 + 17 * z ** 3 - 15 * z) / (384 * freedom ** 3))
    return t * statistics.stdev(values) / math.sqrt(len(values))


def ratio_cell(ratios):
    """Geometric mean and its 95 % interval, from logarithms."""
    logs = [math.log(ratio) for ratio in ratios]
    middle = statistics.mean(logs)
    if len(logs) < 2:
        return f"{math.exp(middle):.2f}"
    half = half_interval(logs)
    return f"{math.exp(middle):.2f} ({math.exp(middle - half):.2f}–{math.exp(middle + half):.2f})"


def difference_cell(differences):
    # Differences are whole points of a hundred problems; equal seeds give no interval.
    half = f" ± {half_interval(differences):.1f}" if len({round(one, 6) for one in differences}) > 1 else ""
    return f"{statistics.mean(differences):+.1f}{half}"


def write_ratios(arms, blocks, reference):
    """Prints every arm against the reference with the same steps, seed by seed."""
    print(f"\n## Against {reference} after as many steps\n\nSteps are those of the first round, unless an arm's name says "
          f"otherwise: two rounds train more. Of each seed the arm's tokens per forward over {reference}'s: "
          "geometric mean, and with several seeds its 95 % interval (Student's t of the logarithms, paired by seed); accuracy: "
          "the mean difference in points, with the same interval, but where all seeds have the same difference.\n")
    print("| arm | steps | seeds | accuracy | " + " | ".join(f"{method}, block {block}" for method in ("jacobi", "mr")
                                                           for block in blocks) + " |")
    print("|" + " --- |" * (4 + 2 * len(blocks)))
    for arm, runs in arms.items():
        name, _, steps = arm.partition("@")
        others = arms.get(f"{reference}@{steps}", {})
        seeds = [seed for seed in runs if seed in others]
        if name in ("base", reference) or not seeds:
            continue
        cells = [difference_cell([greedy_accuracy(runs[seed]) - greedy_accuracy(others[seed]) for seed in seeds])]
        cells += [ratio_cell([runs[seed][method]["points"][place]["tpf"] / others[seed][method]["points"][place]["tpf"]
                              for seed in seeds]) for method in ("jacobi", "mr") for place in range(len(blocks))]
        print(f"| {name} | {steps} | {len(seeds)} | " + " | ".join(cells) + " |")


def write_ablations(options):
    work = pathlib.Path(options.work)
    arms, best = read_ablations(work)
    (base,) = arms["base"].values()
    blocks = [point["settings"]["block_size"] for point in base["jacobi"]["points"]]
    print(f"# Ablations\n\n- command: `{options.command}`; configuration launch/configs/ablations.toml\n{machine()}\n")
    print("Mean ± standard deviation over seeds; accuracy is greedy decoding's, which every method shares. AUP is d3LLM's "
          f"accuracy under parallelism (arXiv 2601.07568), α = {ALPHA}, y_max = {best:g} %, the best accuracy of this table: "
          "AUPs of tables with another one do not compare.\n")
    print("| arm | steps | seeds | accuracy % | " + " | ".join(f"TPF {method}, block {block}" for method in ("jacobi", "mr")
                                                         for block in blocks) + " | AUP jacobi | AUP mr |")
    print("|" + " --- |" * (6 + 2 * len(blocks)))
    for arm in ["base", *(name for name in arms if name != "base")]:
        runs = list(arms[arm].values())
        name, _, steps = arm.partition("@")
        cells = [mean_and_deviation([greedy_accuracy(run) for run in runs], 1)]
        for method in ("jacobi", "mr"):
            for place in range(len(blocks)):
                cells.append(mean_and_deviation([run[method]["points"][place]["tpf"] for run in runs]))
        for method in ("jacobi", "mr"):
            cells.append(mean_and_deviation([accuracy_under_parallelism(
                [(one["tpf"], 100 * one["accuracy"]) for one in [run[method]["baseline"], *run[method]["points"]]], best)
                for run in runs], 1))
        print(f"| {name} | {steps or '–'} | {len(runs)} | " + " | ".join(cells) + " |")
    write_ratios(arms, blocks, "noise-linear")
    seconds = [int(path.read_text(encoding="utf-8")) for path in (work / "seconds").iterdir()]
    print(f"\nAll stages together: {sum(seconds)} s.")


# Okabe and Ito's palette, safe for colour-blind readers.
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000", "#999999")


def write_picture(options):
    """Draws mean accuracy over mean TPF of each arm at one block size; lines join an arm's numbers of steps."""
    arms, _ = read_ablations(pathlib.Path(options.work))
    curves = {}
    for arm, runs in arms.items():
        name, _, steps = arm.partition("@")
        places = [next(point for point in run[options.method]["points"] if point["settings"]["block_size"] == int(options.block))
                  for run in runs.values()]
        curves.setdefault(name, []).append((int(steps or 0), statistics.mean(place["tpf"] for place in places),
                                            100 * statistics.mean(place["accuracy"] for place in places)))
    points = [point for curve in curves.values() for point in curve]
    # Avoids an empty range if all points are equal.
    most, least = max(1.1, *(point[1] for point in points)), min(95, *(point[2] for point in points))
    low, bottom, left, right, height = math.floor(least / 5) * 5, 400, 60, 520, 350

    def place(point):
        return left + (point[1] - 1) / (most - 1) * (right - left), bottom - (point[2] - low) / (100 - low) * height

    def label(x, y, words, anchor="middle"):
        return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{words}</text>'

    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" width="720" height="{bottom + 50}" viewBox="0 0 720 {bottom + 50}" '
             'font-family="sans-serif" font-size="12" role="img">', '<rect width="100%" height="100%" fill="#ffffff"/>',
             label(left, 24, f"Accuracy and tokens per forward pass, {options.method}, inference block {options.block}", "start"),
             f'<path d="M{left} {bottom - height}V{bottom}H{right}" fill="none" stroke="#333333"/>',
             label((left + right) / 2, bottom + 38, "tokens per forward pass")]
    for accuracy in range(low, 101, 5):
        y = place((0, 1, accuracy))[1]
        parts += [label(left - 8, y + 4, f"{accuracy} %", "end"), f'<path d="M{left} {y:.1f}H{right}" stroke="#eeeeee"/>']
    for tick in range(9):
        tpf = 1 + tick * (most - 1) / 8
        parts.append(label(place((0, tpf, 0))[0], bottom + 18, f"{tpf:.2f}"))
    for i, (name, curve) in enumerate(sorted(curves.items())):
        colour, curve = COLOURS[i % len(COLOURS)], sorted(curve)
        if len(curve) > 1:
            line = " ".join(f"{x:.1f},{y:.1f}" for x, y in map(place, curve))
            parts.append(f'<polyline points="{line}" fill="none" stroke="{colour}"/>')
        for point in curve:
            x, y = place(point)
            parts.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4" fill="{colour}"><title>{name}, {point[0]} steps: '
                         f'{point[1]:.2f}, {point[2]:.1f} %</title></circle>')
        parts += [f'<rect x="{right + 24}" y="{50 + 20 * i}" width="12" height="12" fill="{colour}"/>',
                  label(right + 42, 61 + 20 * i, name, "start")]
    print("\n".join([*parts, "</svg>"]))


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    commands = parser.add_subparsers(required=True)
    answers = commands.add_parser("answers")
    page = commands.add_parser("page")
    ablations = commands.add_parser("ablations")
    picture = commands.add_parser("picture")
    for command, names, run in ((answers, ("data", "evaluation", "model", "out"), write_answers),
                                (page, ("work", "arms", "command"), write_page),
                                (ablations, ("work", "command"), write_ablations),
                                (picture, ("work", "method", "block"), write_picture)):
        if command in (answers, page):
            command.add_argument("--task", required=True, choices=sorted(PLAIN_TASK))
        for name in names:
            command.add_argument(f"--{name}", required=True)
        command.set_defaults(run=run)
    options = parser.parse_args()
    options.run(options)


if __name__ == "__main__":
    main()

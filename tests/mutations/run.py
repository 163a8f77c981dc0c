#!/usr/bin/env python3
"""Breaks the engine on purpose, one way after the other, and runs the tests that should see it.

    # all of `list`, in a copy of the tree: hours on a small machine
    tests/mutations/run.py
    tests/mutations/run.py reduce law   # those whose name has one of these words
    # of ten shares the second: `.ci/nightly` takes one after the other
    tests/mutations/run.py --share 2/10
    tests/mutations/run.py --check      # only whether each can still be made, which needs no build

`list` has a mutation a paragraph:

    == what is broken
    - the text as it is in a src/ (the library's, a companion's, an example's), exactly once,
      however its lines are broken (a line each)
    + what it becomes (a line each)
    ! cargo's arguments: tests of which at least one has to fail; `-p NAME` first, where the package
      is no matter of course; or `schedules`, and arguments of .ci/schedules

A mutation that no test sees is printed as SURVIVED, one that does not build as BROKEN, and the exit
status is 1.
"""

import os
import pathlib
import re
import shutil
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
COPY = ROOT / "target/mutations/tree"
LIMIT_S = 600
CLOSERS = [")", "]", "}"]
FOLDERS = ["src", "crates/*/src", "examples/*/src", "examples/*/service"]


def mutations():
    found, last = [], None
    for line in (ROOT / "tests/mutations/list").read_text().splitlines():
        kind, text = line[:2], line[3:] if line.startswith("==") else line[2:]
        if kind == "==":
            last = {"name": text, "before": [], "after": [], "tests": None}
            found.append(last)
        elif kind in ("- ", "-"):
            last["before"].append(text)
        elif kind in ("+ ", "+"):
            last["after"].append(text)
        elif kind == "! ":
            last["tests"] = text.split()
    return found


def pattern(text):
    """Finds a text however its lines are broken: a formatter moves spaces and last commas alone."""
    tokens = re.findall(r"\w+|[^\w\s]", text)
    kept = [t for t, after in zip(tokens, [*tokens[1:], ""]) if t != "," or after not in CLOSERS]
    # Two words stay two words; whatever else stands beside each other may be spaced or not.
    between = lambda a, b: r"\s+" if a[-1:].isidentifier() and b[:1].isidentifier() else r"\s*"
    pieces = [re.escape(kept[0])]
    for one, next in zip(kept, kept[1:]):
        pieces.append(r"(?:\s*,)?\s*" if next in CLOSERS else between(one, next))
        pieces.append(re.escape(next))
    return re.compile("".join(pieces))


def place(mutation, root):
    """The file that has the text, as it is and as it becomes."""
    before, after = ("\n".join(mutation[side]).strip() for side in ("before", "after"))
    kinds = [f"{folder}/**/*.{kind}" for folder in FOLDERS for kind in ("rs", "cuh")]
    files = sorted(file for kind in kinds for file in root.glob(kind))
    found = pattern(before)
    hits = [(p, t, m) for p in files for t in [p.read_text()] for m in found.finditer(t)]
    if len(hits) != 1:
        where = [str(path) for path, _, _ in hits]
        raise SystemExit(f"{mutation['name']}: its text is in {where}, and has to be there once")
    path, text, hit = hits[0]
    return path, text, text[: hit.start()] + after + text[hit.end() :]


def tried(mutation, environment):
    """What comes of a mutation: a word, and how it was seen."""
    path, text, broken = place(mutation, COPY)
    path.write_text(broken)
    try:
        tests = mutation["tests"]
        if tests[0] == "schedules":
            command = ["timeout", str(LIMIT_S), ".ci/schedules", *tests[1:]]
            only = [".ci/schedules", "build"]
        else:
            if "-p" not in tests:
                tests = ["-p", "futensor-tests" if "--test" in tests else "futensor", *tests]
            command = ["timeout", str(LIMIT_S), "cargo", "test", "--no-fail-fast", *tests]
            # Examples in docs cannot be built without being run.
            only = ["cargo", "build", *tests[:2]] if "--doc" in command else [*command, "--no-run"]
        build = subprocess.run(only, cwd=COPY, env=environment, capture_output=True, text=True)
        if build.returncode:
            return "BROKEN", build.stderr
        done = subprocess.run(command, cwd=COPY, env=environment, capture_output=True, text=True)
    finally:
        path.write_text(text)
    output = done.stdout + done.stderr
    red = [
        w[1]
        for line in output.splitlines()
        if (w := line.split())[:1] == ["test"] and "FAILED" in w
    ]
    # A hang ends at a deadline that names its trial, or at the limit.
    how = ", ".join(red[:3]) or f"exit status {done.returncode}"
    return "SURVIVED" if done.returncode == 0 else "killed", how


def main():
    arguments = sys.argv[1:]
    if {"--help", "-h"} & set(arguments):
        return print(__doc__)
    share, shares = 1, 1
    if "--share" in arguments:
        at = arguments.index("--share")
        share, shares = map(int, arguments[at + 1].split("/"))
        del arguments[at : at + 2]
    words = [a for a in arguments if not a.startswith("--")]
    chosen = [m for m in mutations() if not words or any(w in m["name"] for w in words)][
        share - 1 :: shares
    ]
    if "--check" in arguments:
        for mutation in chosen:
            place(mutation, ROOT)
        return print(len(chosen), "mutations can be made")
    # A file that has gone since the last run goes here as well.
    for folder in FOLDERS:
        for old in COPY.glob(folder):
            shutil.rmtree(old)
    COPY.mkdir(parents=True, exist_ok=True)
    files = subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT, check=True, capture_output=True
    ).stdout
    subprocess.run(
        ["tar", "-c", "--null", "-T", "-", "-f", str(COPY) + ".tar"],
        cwd=ROOT,
        input=files,
        check=True,
    )
    subprocess.run(["tar", "-x", "-f", str(COPY) + ".tar"], cwd=COPY, check=True)
    environment = {"CARGO_TARGET_DIR": str(COPY.parent / "target"), **os.environ}
    lived = 0
    for mutation in chosen:
        began = time.monotonic()
        word, how = tried(mutation, environment)
        lived += word != "killed"
        print(f"{word:8} {mutation['name']} ({time.monotonic() - began:.0f} s): {how}", flush=True)
    sys.exit(lived > 0)


main()

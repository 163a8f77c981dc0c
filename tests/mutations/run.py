#!/usr/bin/env python3
"""Breaks the engine on purpose, one way after the other, and runs the tests that should see it.

    tests/mutations/run.py              # all of `list`, in a copy of the tree: hours on a small machine
    tests/mutations/run.py reduce law   # those whose name has one of these words
    tests/mutations/run.py --check      # only whether each can still be made, which needs no build

`list` has a mutation a paragraph:

    == what is broken
    - the text as it is in src/, exactly once, whatever the file (a line each)
    + what it becomes (a line each)
    ! cargo's arguments: tests of which at least one has to fail

A mutation that no test sees is printed as SURVIVED, and the exit status is 1.
"""
import os
import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
COPY = ROOT / "target/mutations/tree"
LIMIT_S = 900


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


def place(mutation, root):
    """The file that has the text, as it is and as it becomes."""
    before, after = "\n".join(mutation["before"]), "\n".join(mutation["after"])
    if len(mutation["before"]) == 1:
        # However deep it stands.
        before, after = before.strip(), after.strip()
    hits = [(p, t) for p in sorted((root / "src").rglob("*.rs")) if (t := p.read_text()).count(before)]
    if len(hits) != 1 or hits[0][1].count(before) != 1:
        sys.exit(f"{mutation['name']}: its text is in {[str(p) for p, _ in hits]}, and has to be there once")
    path, text = hits[0]
    return path, text, text.replace(before, after)


def main():
    if {"--help", "-h"} & set(sys.argv):
        return print(__doc__)
    words = [a for a in sys.argv[1:] if not a.startswith("--")]
    chosen = [m for m in mutations() if not words or any(w in m["name"] for w in words)]
    if "--check" in sys.argv:
        for mutation in chosen:
            place(mutation, ROOT)
        return print(len(chosen), "mutations can be made")
    COPY.mkdir(parents=True, exist_ok=True)
    files = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, check=True, capture_output=True).stdout
    subprocess.run(["tar", "-c", "--null", "-T", "-", "-f", str(COPY) + ".tar"], cwd=ROOT, input=files, check=True)
    subprocess.run(["tar", "-x", "-f", str(COPY) + ".tar"], cwd=COPY, check=True)
    environment = {"CARGO_TARGET_DIR": str(COPY.parent / "target"), **os.environ}
    survived = []
    for mutation in chosen:
        path, text, broken = place(mutation, COPY)
        path.write_text(broken)
        try:
            package = "futensor-tests" if "--test" in mutation["tests"] else "futensor"
            command = ["timeout", str(LIMIT_S), "cargo", "test", "--no-fail-fast", "-p", package, *mutation["tests"]]
            # Examples in docs cannot be built without being run.
            only = ["cargo", "build", "-p", package] if "--doc" in command else [*command, "--no-run"]
            build = subprocess.run(only, cwd=COPY, env=environment, capture_output=True, text=True)
            if build.returncode:
                sys.exit(f"{mutation['name']}: does not build\n{build.stderr}")
            done = subprocess.run(command, cwd=COPY, env=environment, capture_output=True, text=True)
            output = done.stdout + done.stderr
            red = [w[1] for line in output.splitlines() if (w := line.split())[:1] == ["test"] and "FAILED" in w]
            # A hang ends at a deadline that names its trial, or at the limit.
            how = ", ".join(red[:3]) or f"exit status {done.returncode}"
        finally:
            path.write_text(text)
        if done.returncode == 0:
            survived.append(mutation["name"])
        print("SURVIVED" if done.returncode == 0 else "killed  ", f"{mutation['name']}: {how}", flush=True)
    sys.exit(1 if survived else 0)


main()

"""One engine in a process of its own: JSON commands on stdin, one answer line each on stdout.

    PYTHON benchmarks/engines/worker.py ENGINE FOLDER QUANT THREADS

Commands, and the fields of their answers:
    {"do": "load"}                            seconds, import_seconds, rss (bytes)
    {"do": "run", "ids": […], "n_new": n}     began (of time.perf_counter), seconds: [n]
    {"do": "top1", "ids": […]}                ids
    {"do": "own_goal", "name": name, …}       samples (of this kit alone)
    {"do": "about"}                           versions, bytes_per_token, memory: VmHWM, RssAnon, RssFile
An answer {"error": text} is the engine's failure; the worker goes on. End of stdin ends it. Whatever the
engine prints goes to stderr.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import time
from pathlib import Path


def main() -> None:
    name, folder, quant, threads = sys.argv[1:]
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # an engine's native prints too
    engine = find_engine(name)
    for line in sys.stdin:
        command = json.loads(line)
        try:
            answer = perform(engine, command, folder, quant, int(threads))
        except Exception as error:
            answer = {"error": f"{type(error).__name__}: {' '.join(str(error).split())[:500]}"}
        print(json.dumps(answer), file=answers, flush=True)


def find_engine(name: str):
    # Python puts this folder first, where modules have the names of the engines that they import.
    sys.path[0] = str(Path(__file__).resolve().parent.parent.parent)
    return importlib.import_module("benchmarks.engines.base").find(name)


def perform(engine, command: dict, folder: str, quant: str, threads: int) -> dict:
    """The answer to one command."""
    started = time.perf_counter()
    if command["do"] == "load":
        for module in engine.modules:
            importlib.import_module(module)
        imported = time.perf_counter()
        engine.load(folder, quant, threads)
        seconds = time.perf_counter() - imported
        return {"seconds": seconds, "import_seconds": imported - started, "rss": memory()["VmRSS"]}
    if command["do"] == "run":
        seconds = [float(value) for value in engine.run(command["ids"], command["n_new"])]
        if len(seconds) != command["n_new"]:
            raise ValueError(f"the engine made {len(seconds)} tokens, expected {command['n_new']}")
        return {"began": started, "seconds": seconds}
    if command["do"] == "top1":
        return {"ids": [int(value) for value in engine.top1(command["ids"])]}
    if command["do"] == "own_goal":
        options = {key: value for key, value in command.items() if key not in ("do", "name")}
        return {"samples": engine.own_goal(command["name"], **options)}
    if command["do"] == "about":
        about = {"versions": engine.versions(), "bytes_per_token": engine.bytes_per_token()}
        return {**about, "python": sys.version.split()[0], "memory": memory()}
    raise ValueError(f"command {command['do']!r}")


def memory() -> dict:
    """Bytes: VmHWM, VmRSS, RssAnon, RssFile of this process; None where the system does not tell."""
    found = dict.fromkeys(("VmHWM", "VmRSS", "RssAnon", "RssFile"))
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
    except OSError:
        return found
    for line in lines:
        key, _, value = line.partition(":")
        if key in found:
            found[key] = int(value.split()[0]) * 1024
    return found


if __name__ == "__main__":
    main()

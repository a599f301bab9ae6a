"""Prints a report of `skep-bench --json` beside boots by plain QEMU.

Usage: boot.py REPORT PLAIN, where PLAIN has the milliseconds of one boot on each line.
"""

import json
import statistics
import sys

from figures import figure

# Of a VM out of the pool, at the median.
POOL_READY_MS = 5


def main(report_path, plain_path):
    with open(report_path) as file:
        report = json.load(file)
    with open(plain_path) as file:
        plain = [float(line) for line in file if line.strip()]
    print(f"{'MODE':<12}{'SOURCE':<8}{'VMS':>5}  {'FIGURE':<16}{'P50':>10}{'P95':>10}{'MAX':>10}")
    for run in report["runs"]:
        for group in run["groups"]:
            for name, figures in group.items():
                if isinstance(figures, dict):
                    row(run["mode"], group["source"], group["vms"], name, figures)
            if run["mode"] == "sequential" and group["source"] == "pool":
                figure("ready from the pool, p50", group["ready_ms"]["p50"], POOL_READY_MS, " ms")
        print(f"success {run['mode']}: {run['succeeded']} of {run['vms']}, in {run['elapsed_ms'] / 1000:.1f} s")
    commands = report["commands"]
    if commands and commands["elapsed_ms"]:
        row("commands", "-", 1, f"{commands['number']} x true, ms", commands["elapsed_ms"])
    if not plain:
        return
    middle = statistics.median(plain)
    row("plain QEMU", "-", len(plain), "ready_ms", {"p50": middle, "p95": max(plain), "max": max(plain)})
    for run in report["runs"]:
        for group in run["groups"]:
            times = middle / group["tti_ms"]["p50"]
            print(
                f"{run['mode']}, {group['source']}: a boot by plain QEMU takes {times:.0f} times as long as a boot "
                "and its first command (p50)"
            )


def row(mode, source, vms, name, figures):
    values = "".join(f"{figures[key]:>10.1f}" for key in ("p50", "p95", "max"))
    print(f"{mode:<12}{source:<8}{vms:>5}  {name:<16}{values}")


if __name__ == "__main__":
    main(*sys.argv[1:])

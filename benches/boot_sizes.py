"""Compares cold boots of VMs of several sizes, the smallest first.

Usage: boot_sizes.py DIR SIZE..., where a SIZE is MEMORY_MB/VCPUS and DIR/MEMORY_MB.ROUND are reports of `skep-bench
--json --mode sequential`. The figure of a size is the median of its rounds' medians, so that a load that comes and goes
meets all sizes.
"""

import json
import pathlib
import statistics
import sys

from figures import figure

# A large VM is restored as fast as a small one, within a tenth.
RATIO = 1.1
IDLE_MB = 70
# What 1 GiB more may cost an idle VM.
MORE_MB = 5


class Size:
    def __init__(self, directory, name):
        self.name = name
        paths = directory.glob(f"{name.split('/')[0]}.*")
        runs = [json.loads(path.read_text())["runs"][0] for path in paths]
        self.groups = [group for run in runs for group in run["groups"]]
        self.booted, self.good = sum(run["vms"] for run in runs), sum(run["succeeded"] for run in runs)

    def middle(self, name):
        return statistics.median(group[name]["p50"] for group in self.groups)

    def most(self, name):
        return max(group[name]["max"] for group in self.groups)


def main(directory, *names):
    sizes = [Size(pathlib.Path(directory), name) for name in names]
    print(f"{'MB/VCPUS':<10}{'GOOD':>10}{'READY P50':>12}{'MAX':>10}{'ANONYMOUS P50':>16}{'MAX':>8}")
    for size in sizes:
        print(
            f"{size.name:<10}{f'{size.good} of {size.booted}':>10}{size.middle('ready_ms'):>12.1f}"
            f"{size.most('ready_ms'):>10.1f}{size.middle('anonymous_mb'):>16.1f}{size.most('anonymous_mb'):>8.1f}"
        )
    small, large, larger = sizes
    ratio = large.middle("ready_ms") / small.middle("ready_ms")
    figure(f"ready, {large.name} beside {small.name}", ratio, RATIO, " times")
    figure(f"boots of {large.name} that failed", large.booted - large.good, 0)
    figure(f"anonymous memory of a VM of {large.name}", large.most("anonymous_mb"), IDLE_MB, " MiB")
    more = larger.middle("anonymous_mb") - large.middle("anonymous_mb")
    figure(f"what {larger.name} takes more", more, MORE_MB, " MiB")


if __name__ == "__main__":
    main(*sys.argv[1:])

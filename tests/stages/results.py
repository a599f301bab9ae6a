"""Reads what stages of tests report, and prints it as one table."""

import re
import xml.etree.ElementTree as ElementTree
from dataclasses import dataclass, field

# More tests that pass only when they are tried again fail a run.
FLAKY_ALLOWED = 2
SLOWEST = 10
LINES_OF_FAILURE = 12


@dataclass
class Test:
    """A test's name, its seconds, what became of it (passed, flaky, failed, skipped), and the text of its first failure."""

    name: str
    seconds: float
    outcome: str
    text: str = ""


def of_nextest(report, status):
    """The tests of a report of nextest; one that failed stands for what is wrong with the report."""
    if not report.exists():
        return [Test("the stage's report", 0.0, "failed", f"{report} is missing; nextest ended with {status}")]
    tests = []
    for case in ElementTree.parse(report).getroot().iter("testcase"):
        # A test that passed in the end has only `flakyFailure`.
        failures = [kind for kind in ["failure", "error", "flakyFailure", "flakyError"] if case.find(kind) is not None]
        name = f"{case.get('classname')} {case.get('name')}"
        seconds = float(case.get("time") or 0)
        if case.find("skipped") is not None:
            tests.append(Test(name, seconds, "skipped", case.find("skipped").get("message") or ""))
        elif not failures:
            tests.append(Test(name, seconds, "passed"))
        else:
            first = case.find(failures[0])
            out_of_time = any("timeout" in (child.get("type") or "") for child in case)
            passed = failures[0].startswith("flaky") and not out_of_time
            tests.append(Test(name, seconds, "flaky" if passed else "failed", f"{first.get('type')}: {text_of(first)}"))
    if status != 0 and all(test.outcome != "failed" for test in tests):
        tests.append(Test("nextest", 0.0, "failed", f"it ended with {status}"))
    return tests


def of_node(file, reports):
    """The tests of one file of the dashboard, from the reports of each time that it was tried."""
    if not reports:
        return [Test(f"{file}: its report", 0.0, "failed", "no report was written")]
    attempts = [list(cases(report)) for report in reports]
    failures = {}
    for attempt in attempts:
        for name, _, failure in attempt:
            if failure is not None:
                failures.setdefault(name, failure)
    tests = []
    for name, seconds, failure in attempts[-1]:
        first = failures.get(name)
        outcome = "failed" if failure is not None else "flaky" if first is not None else "passed"
        tests.append(Test(f"{file} {name}", seconds, outcome, text_of(first) if first is not None else ""))
    return tests or [Test(f"{file}: its tests", 0.0, "failed", "there are none")]


def cases(report):
    """Name, seconds and failure of each test of a report of node."""
    try:
        root = ElementTree.parse(report).getroot()
    except ElementTree.ParseError as error:
        failure = ElementTree.Element("failure", message=f"{report} cannot be read: {error}")
        return [("its report", 0.0, failure)]
    return [(case.get("name"), float(case.get("time") or 0), case.find("failure")) for case in root.iter("testcase")]


def text_of(failure):
    """The lines of a failure that say most: those from a panic or an assertion on, otherwise the last ones."""
    text = re.sub(r"\x1b\[[0-9;]*m", "", f"{failure.text or failure.get('message') or ''}").strip()
    lines = text.partition("\nstack backtrace:")[0].splitlines()
    begin = next((at for at, line in enumerate(lines) if "panicked at" in line), max(len(lines) - LINES_OF_FAILURE, 0))
    return "\n".join(line[:300] for line in lines[begin : begin + LINES_OF_FAILURE])


@dataclass
class Table:
    """The stages so far: name, seconds, tests."""

    stages: list = field(default_factory=list)

    def add(self, stage, seconds, tests):
        self.stages.append((stage, seconds, tests))

    def with_outcome(self, outcome):
        return [(stage, test) for stage, _, tests in self.stages for test in tests if test.outcome == outcome]

    def show(self):
        """Prints the table and returns the exit status of the run."""
        print(f"\n{'stage':<12}{'minutes':>8}{'passed':>8}{'flaky':>7}{'failed':>8}{'skipped':>9}")
        for stage, seconds, tests in self.stages:
            counts = [sum(test.outcome == kind for test in tests) for kind in ["passed", "flaky", "failed", "skipped"]]
            print("{:<12}{:>8.1f}{:>8}{:>7}{:>8}{:>9}".format(stage, seconds / 60, *counts))
        everything = [(stage, test) for stage, _, tests in self.stages for test in tests]
        print(f"\nThe {SLOWEST} slowest tests, in seconds:")
        for stage, test in sorted(everything, key=lambda pair: -pair[1].seconds)[:SLOWEST]:
            print(f"{test.seconds:>8.1f} {stage}: {test.name}")
        for outcome in ["skipped", "flaky", "failed"]:
            for stage, test in self.with_outcome(outcome):
                print(f"\n{outcome}: {stage}: {test.name}\n    " + test.text.replace("\n", "\n    "))
        passed, flaky, failed = (len(self.with_outcome(outcome)) for outcome in ["passed", "flaky", "failed"])
        if flaky > FLAKY_ALLOWED:
            print(f"\n{flaky} tests passed only when they were tried again; {FLAKY_ALLOWED} are allowed")
        print(f"\n{passed + flaky} passed, {failed} failed")
        return int(failed > 0 or flaky > FLAKY_ALLOWED)

    def line(self):
        """The run in one line: minutes of each stage, and what failed or was flaky."""
        minutes = [f"{stage} {seconds / 60:.1f}" for stage, seconds, _ in self.stages]
        names = [f"{kind} {test.name}" for kind in ["failed", "flaky"] for _, test in self.with_outcome(kind)]
        return ", ".join([*minutes, f"{len(self.with_outcome('passed'))} passed", *names])

"""What a seed script prints: its banner, its step lines exactly as the seeds have them, and an honest summary."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from layermark.axes import as_text
from layermark.outcome import Block
from layermark.report.text import arms, digits, human, percent
from layermark.seeds.graphs import save_graph
from layermark.seeds.request import LayerRequest, ScriptRequest, mode
from layermark.seeds.scripts import KINDS
from layermark.session.budget import StepPlan
from layermark.session.fixed_steps import StepListener

LONG_S = 600.0
"""A run that takes longer says so at the start."""

STEP_LINES = {
    "popart": "{seconds:<8.3} sec/itr.   {rate:5f} items/sec.",
    "tensorflow": "{seconds:<7.3} sec/itr.   {rate:5f} items/sec",
    "hmc": "{seconds:<7.3} sec/itr.    {rate:5f} hmc steps/sec",
}
_FRAMEWORKS = {"popart": "PopART", "tensorflow": "TensorFlow", "hmc": "TensorFlow"}


def step_line(family: str, seconds: float, items: int) -> str:
    """One step as its family prints it.

    >>> step_line("popart", 0.123, 1000)
    '0.123    sec/itr.   8130.081301 items/sec.'
    >>> step_line("tensorflow", 0.123, 1000)
    '0.123   sec/itr.   8130.081301 items/sec'
    >>> step_line("hmc", 0.0457, 10000)
    '0.0457  sec/itr.    218818.380744 hmc steps/sec'
    """
    return STEP_LINES[family].format(seconds=float(seconds), rate=items / seconds)


def banner(request: LayerRequest, values: Mapping[str, Any]) -> Iterator[str]:
    """What is about to be measured, as the seeds' programs say it."""
    script = request.script
    kind = "" if script.family == "hmc" else f" {KINDS[mode(values)]}"
    yield f"{_FRAMEWORKS[script.family]} {script.title}{kind} Synthetic benchmark."
    for label, name in script.banner:
        hidden = request.report and name in ("batches_per_step", "steps")
        yield f" {label} {'n/a' if hidden else as_text(values[name])}."


class Printer(StepListener):
    """Prints every event of a run as soon as it happens. Subclasses are the programs' own ways to say it."""

    step_word: str
    """What the program calls a step."""

    def __init__(self, request: ScriptRequest) -> None:
        self._request = request

    @abstractmethod
    def say(self, line: str) -> None:
        """Print one line, in the program's form."""

    @abstractmethod
    def open(self) -> None:
        """What comes before everything else."""

    @abstractmethod
    def begin(self) -> None:
        """Say that the program is being built."""

    @abstractmethod
    def end(self, document: Mapping[str, Any]) -> None:
        """What follows the steps, before the summary."""

    @property
    @abstractmethod
    def dropped(self) -> str:
        """Which steps the summary leaves out, in words; empty where it has all of them."""

    def expected(self, seconds: float) -> None:
        """Warn of a long run, unless a budget ends it."""
        if seconds > LONG_S and self._request.budget_s is None:
            self.say(f"This run will take about {duration(seconds)}; --budget 2m would end it in time.")

    def shortened(self, plan: StepPlan, requested: StepPlan) -> None:
        """Say what the budget leaves of the request."""
        parts = [f"{plan.batches} of {requested.batches} batches per host call"]
        if plan.calls != requested.calls:
            parts.append(f"{plan.calls} of {requested.calls} host calls per {self.step_word}")
        if plan.steps != requested.steps:
            parts.append(f"{plan.steps} of {requested.steps} {self.step_word}s")
        self.say(f"Shortened to fit the budget of {duration(self._request.budget_s or 0.0)}: {', '.join(parts)}.")

    def stopped(self, done: int) -> None:
        """Say that the budget ended the run."""
        self.say(f"The budget ended the run after {done} of {self._request.steps.steps} {self.step_word}s.")

    def profiled(self, files: Sequence[str]) -> None:
        """Say where the profile is."""
        self.say(f"Profile: {', '.join(files)}")

    def note(self, text: str) -> None:
        """One line."""
        self.say(f"Note: {text}")


class LayerPrinter(Printer):
    """The form of the layers' programs."""

    step_word = "step"

    def __init__(self, request: LayerRequest, values: Mapping[str, Any], file: Path) -> None:
        super().__init__(request)
        self._layer, self._values, self._file = request, values, file
        self._family = request.script.family
        self._seconds: list[float] = []
        self._items = 0

    def say(self, line: str) -> None:
        """Print a line at once, so that a log shows where a run is."""
        print(line, flush=True)

    def open(self) -> None:
        """The banner, what the user should know, and the graph where it is saved."""
        for line in banner(self._layer, self._values):
            self.say(line)
        for text in self._layer.notes:
            self.note(text)
        if self._layer.save_graph:
            self.say(save_graph(self._layer, self._file))

    def begin(self) -> None:
        """Say that the program is being built."""
        self.say("Compiling..." if self._family == "popart" else "Compiling and Warmup...")

    def compiled(self, seconds: float) -> None:
        """Say how long it took, and that the steps begin."""
        self.say(f"Duration: {seconds:.3f} seconds")
        self.say("")
        self.say("Executing...")

    def step(self, block: Block, items: int) -> None:
        """The line of one step."""
        seconds = block.samples_ns[0] / 1e9
        self._seconds.append(seconds)
        self._items += items
        self.say(step_line(self._family, seconds, items))
        if self._layer.cycles and self._family != "popart":
            self.say(f"Hardware cycle count: {block.samples_ns[0]} (nanoseconds)")

    def end(self, document: Mapping[str, Any]) -> None:
        """What follows the steps."""
        if self._family == "popart" and self._layer.cycles and self._seconds:
            self.say(f"Hardware cycle count per host call: {round(self._seconds[-1] * 1e9)} (nanoseconds)")
        if self._layer.report and self._family != "popart":
            for line in timings(document, sum(self._seconds)):
                self.say(line)
        if self._family == "hmc" and self._items:
            self.say(f"Average time per hmc step: {sum(self._seconds) / self._items:.3} sec")

    @property
    def dropped(self) -> str:
        """Nothing."""
        return ""


def timings(document: Mapping[str, Any], executed_s: float) -> Iterator[str]:
    """Where the time of a `--report` went, under the words that the seeds' own tests look for."""
    yield "IPU Timings (of the device that ran):"
    yield from (f"  {name:10} {seconds:.6f} s" for name, seconds in (document["timings_s"] or {}).items())
    yield f"  {'execute':10} {executed_s:.6f} s"


_TOLD_BEFORE = ("few_latencies", "not_proven", "no_half_partials")


def summary(document: Mapping[str, Any], dropped: str = "") -> Iterator[str]:
    """The figures to quote: all items over all time, its interval, the share of the ceiling, and the proof.

    Without words about steps that were dropped, the first is shown separately.
    """
    if document["status"] == "skipped":
        yield f"Not measured: {document['reason'].removeprefix('not measured: ')}"
        return
    if document["status"] == "failed":
        yield f"FAILED: {document['reason']}"
    rate = document["sustained"]
    if rate["value"]:
        yield f"Summary ({_setting(document)}):"
        yield f"  rate      {human(rate['value'])} {rate['unit']} {arms(rate)} (all items over all time)"
        yield f"  dropped   {dropped}" if dropped else f"  first     {_first(document)}"
        if dropped and document["latency_ms"]["p50"] is not None:
            yield f"  latency   {_percentiles(document['latency_ms'])}"
        yield from _chosen(document["settings"])
        yield from _each_rank(document["ranks"], rate["unit"])
        if document["scaling"]["efficiency"] is not None:
            alone, share = document["scaling"]["alone"], document["scaling"]["efficiency"]
            ranks = len(document["ranks"])
            yield f"  scaling   {percent(share)} of {ranks} times one alone ({human(alone)} {rate['unit']})"
        if document["efficiency"] is not None:
            yield f"  ceiling   {percent(document['efficiency'])} of what this machine reached in the same session"
    yield f"  verified  {_proof(document)}"
    if document["timings_s"]:
        yield f"  before    {', '.join(f'{name} {each:.3g} s' for name, each in document['timings_s'].items())}"
    # Steps are whole host calls, so nobody misses the percentiles of a batch here.
    told = zip(document["warning_codes"], document["warnings"], strict=True)
    yield from (f"  warning   {text}" for code, text in told if code not in _TOLD_BEFORE)
    if document["status"] == "failed" and document["log"]:
        yield document["log"]


def _each_rank(ranks: Sequence[Mapping[str, Any]], unit: str) -> Iterator[str]:
    """The rate of each copy, and which of them lags behind."""
    if ranks:
        slowest = max(ranks, key=lambda each: float(each["lag"]))
        rates = ", ".join(human(each["rate"]) for each in ranks)
        yield f"  each      {rates} {unit}; rank {slowest['rank']} lags by {percent(slowest['lag'])}"


def _chosen(settings: Mapping[str, Any]) -> Iterator[str]:
    """What was decided while the program was built: the form of a recurrent layer, and trials between ways to run."""
    if settings.get("cell"):
        yield f"  cell      {settings['cell']}"
    yield from (f"  trial     {settings[name]}" for name in ("execution_trial", "loop_trial") if settings.get(name))


def _setting(document: Mapping[str, Any]) -> str:
    spec, settings = document["spec"], document["settings"]
    return f"{spec['backend']} {settings['execution']}, {spec['precision']}, {spec['threads']} threads"


def _first(document: Mapping[str, Any]) -> str:
    """The first step beside the others, which may have been warmer."""
    samples = document["samples"]
    first = samples[0]["items"] / samples[0]["seconds"]
    if len(samples) == 1:
        return f"{human(first)} {document['sustained']['unit']}, the only step"
    rest = sum(each["items"] for each in samples[1:]) / sum(each["seconds"] for each in samples[1:])
    return f"{human(first)} {document['sustained']['unit']} in the first step, {human(rest)} in the others"


def _percentiles(latency: Mapping[str, float | None]) -> str:
    known = [f"{name} {digits(each)} ms" for name, each in latency.items() if each is not None]
    return f"{', '.join(known)} of a batch"


def _proof(document: Mapping[str, Any]) -> str:
    """What the comparison with the reference said, or why there was none."""
    verified = document["verified"]
    if verified["ok"] is None:
        told = zip(document["warning_codes"], document["warnings"], strict=True)
        return next((f"no, {text}" for code, text in told if code == "not_proven"), "no")
    against = f"error {digits(verified['max_error'])}, allowed {digits(verified['tolerance'])}"
    return f"{'yes' if verified['ok'] else 'NO'}, {against} against the {verified['against']}"


def duration(seconds: float) -> str:
    """A length of time in words that `--budget` would also take.

    >>> duration(45), duration(150), duration(9000)
    ('45s', '2m30s', '2h30m')
    """
    whole = round(seconds)
    if whole < 60:
        return f"{whole}s"
    hours, minutes, rest = whole // 3600, whole % 3600 // 60, whole % 60
    if hours:
        return f"{hours}h{minutes}m" if minutes else f"{hours}h"
    return f"{minutes}m{rest}s" if rest else f"{minutes}m"

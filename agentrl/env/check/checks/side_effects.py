"""What an environment does to the process that it shares with other episodes."""

from __future__ import annotations

from collections.abc import Iterator

from agentrl.env.check.finding import Finding, error, warning
from agentrl.env.check.records import CallRecord, Effect, Place, Recording

_CODES = {
    "cwd": ("changes-directory", "open files by absolute paths, and give `cwd=` to programs that you start"),
    "environ": ("changes-environment", "give `env=` to the programs that you start"),
    "random": ("global-random", "draw from self.np_random, which belongs to the episode"),
    "numpy.random": ("global-random", "draw from self.np_random, which belongs to the episode"),
}


def check(recording: Recording) -> Iterator[Finding]:
    for episode in recording.episodes:
        for call in episode.calls:
            for effect in call.effects:
                code, fix = _CODES[effect.what]
                place = effect.place or _drawn(recording, effect, call)
                yield error(code, f"{call.method}: {effect.text}", fix, place or recording.place(call.method))
    for change in recording.state:
        yield warning(
            "shared-state",
            f"{change.name} is shared by all instances and was changed: {change.before} became {change.after}",
            "keep it on self and set it in reset; a name with 'cache' in it is left alone",
            change.place or recording.place("class"),
        )
    for printed in recording.printed:
        yield warning(
            "prints",
            f"it prints {printed.text[:60]!r}, which in a run mixes with the driver's output",
            "use the logging module",
            printed.place or recording.place("step"),
        )


def _drawn(recording: Recording, effect: Effect, call: CallRecord) -> Place | None:
    """A use of the global generator in the source, one in the method itself first."""
    suspects = recording.subject.suspects if recording.subject is not None else []
    numpys = effect.what == "numpy.random"
    drawing = [
        suspect
        for suspect in suspects
        if suspect.kind == "random" and suspect.text.startswith(("np.", "numpy.")) == numpys
    ] or [suspect for suspect in suspects if suspect.kind == "random"]
    own = [suspect for suspect in drawing if suspect.place.name.endswith(f".{call.method}")]
    return next((suspect.place for suspect in (*own, *drawing)), None)

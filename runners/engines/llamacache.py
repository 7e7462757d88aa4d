"""What a slot holds, and getting it to hold what an answer needs before it goes on.

1. A resume replays the shapes of the first time, the prompt in its batches and each unit alone, or takes up a saved
   state and replays what came after it. The newest unit is left to the call that draws its successor.
2. What the server found in its cache is compared with what must be there, at every call. After a restore a difference
   is `RestoreFailed`: the server's memory is not what anybody thinks.
"""

import contextlib
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

from core.errors import EngineFault, RestoreFailed
from runners.engines.base import GenerateWork, Ready, Snapshot, Way
from runners.engines.llamabody import replay_body
from runners.engines.llamahttp import Event, Progress, Stream
from runners.engines.llamaslots import Slot


class SlotCache:
    """The count of tokens in a slot, kept in step with the server's."""

    def __init__(self, slot: Slot, pulse: Callable[[int], None]) -> None:
        self.held = 0
        """Tokens that must be there when the next call begins."""
        self._slot = slot
        self._pulse = pulse
        self._restored = 0
        self._processed = 0

    def expect(self, found: int) -> None:
        """Raises `EngineFault` when the server found something else."""
        if found != self.held:
            words = f"The server found {found} tokens in its slot {self._slot.number} where {self.held} must be."
            raise RestoreFailed(words) if self._restored else EngineFault(words)

    def calling(self) -> None:
        """A streamed call begins."""
        self._processed = self.held

    def progressed(self, progress: Progress) -> bool:
        """Pulse for what was evaluated since; answers whether it was the last of the prompt."""
        self.expect(progress.cache)
        evaluated, self._processed = progress.processed - self._processed, progress.processed
        if evaluated > 0:
            self._pulse(evaluated)
        return progress.processed == progress.total

    def resume(self, work: GenerateWork) -> Ready:
        """Hold the prompt and all units but the newest. Raises `EngineFault`, and what a pulse raises."""
        slot, prompt = self._slot, len(work.prompt)
        if work.snapshot is not None:
            self.held = self._restored = self._restore(work, work.snapshot)
        else:
            self._evaluate_prompt(work)
        for count in range(self.held - prompt + 1, len(work.done)):
            units = list(work.done[:count])
            body = replay_body(work, units, slot=slot.number, cached=self.held, streamed=False)
            timings = slot.at.ask("POST", "/completion", body, kind=Event).timings
            self.expect(-1 if timings is None else timings.cache_n)
            self.held += 1
            self._pulse(1)
        way: Way = "snapshot" if self._restored else "recomputed"
        return Ready(way, self._restored, self.held - self._restored)

    def _evaluate_prompt(self, work: GenerateWork) -> None:
        self.calling()
        stream = Stream(self._slot.at, replay_body(work, [], slot=self._slot.number, cached=0, streamed=True))
        with contextlib.closing(stream):
            for event in stream:
                if event.prompt_progress is not None:
                    self.progressed(event.prompt_progress)
                elif event.stop:
                    self.expect(-1 if event.timings is None else event.timings.cache_n)
        self.held = len(work.prompt)

    def _restore(self, work: GenerateWork, snapshot: Snapshot) -> int:
        least, most = len(work.prompt), len(work.prompt) + len(work.done) - 1
        if not least <= snapshot.tokens <= most:
            raise EngineFault(f"A saved state of {snapshot.tokens} tokens is no use here; {least} to {most} would be.")
        if self._slot.directory is None:
            raise EngineFault("This server takes no saved states; give it none.")
        with _within(snapshot.path, self._slot.directory) as name:
            try:
                restored = self._slot.restore(name)
            except EngineFault as fault:
                raise RestoreFailed(f"The state {snapshot.path.name} could not be taken up: {fault}") from fault
        if restored != snapshot.tokens:
            raise RestoreFailed(
                f"The state {snapshot.path.name} came back with {restored} tokens; it was saved with {snapshot.tokens}."
            )
        return restored


@contextlib.contextmanager
def _within(path: Path, directory: Path) -> Iterator[str]:
    """The name under which the server finds the file in its own directory."""
    if path.parent.resolve() == directory.resolve():
        yield path.name
        return
    here = directory / f"from-{os.getpid()}-{path.name}"
    try:
        try:
            os.link(path, here)
        except OSError:
            shutil.copyfile(path, here)
        yield here.name
    except OSError as cause:
        raise RestoreFailed(f"The state {path.name} cannot be brought to the server: {cause.strerror}.") from cause
    finally:
        here.unlink(missing_ok=True)

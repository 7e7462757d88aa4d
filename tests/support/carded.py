"""A whole service on a machine whose NVIDIA cards lie in a JSON file, beneath the real pynvml."""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
from fake_nvml import GIB, Box, FakeCard
from house import ROOT, House

SUPPORT = ROOT / "tests" / "support"
GPU = "GPU-af7b61d8-8c31-4e9a-bf3c-5d0b7e1c2a90"


class Cards:
    """The file that the fake library of another process shows."""

    def __init__(self, file: Path, *cards: FakeCard) -> None:
        self.file = file
        self.box = Box(list(cards))
        self.slept = file.with_name("slept")
        self.slept.write_text("0")
        self.write()

    def write(self) -> None:
        draft = self.file.with_suffix(".new")
        draft.write_bytes(msgspec.json.encode(self.box))
        draft.replace(self.file)

    def change(self, change: Callable[[FakeCard], Any]) -> None:
        """Change the first card, and show it."""
        change(self.box.cards[0])
        self.write()

    def sleep(self, seconds: int) -> None:
        """Let the machine have slept for so long when it is looked at next."""
        draft = self.slept.with_suffix(".new")
        draft.write_text(str(int(self.slept.read_text()) + seconds * 1_000_000))
        draft.replace(self.slept)

    @property
    def environment(self) -> dict[str, str]:
        """For a process that is to see these cards."""
        search = (SUPPORT / "fake_card", SUPPORT, ROOT)
        files = {"FAKE_NVML_FILE": str(self.file), "FAKE_SLEEP_FILE": str(self.slept)}
        return files | {"PYTHONPATH": os.pathsep.join(map(str, search))}


def card(uuid: str = GPU, **fields: Any) -> FakeCard:
    """8 GiB, well, and needing no recovery."""
    return FakeCard(uuid, **({"total": 8 * GIB, "recovery": 0} | fields))


@contextmanager
def carded(root: Path, cards: Cards, config: str = "", model: str = "null") -> Iterator[House]:
    """A running service without a simulated accelerator."""
    made = House(root, gpu=None, config=config, model=model)
    try:
        yield made.start(cards.environment)
    finally:
        made.client.close()
        if made.process is not None and made.process.poll() is None:
            made.process.kill()
            made.process.wait()

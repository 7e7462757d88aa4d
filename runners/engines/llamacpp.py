"""llama.cpp, through the HTTP interface of its server: in this process, as a command, or at an address.

It decides which work a server is given, and what its saved states must agree to.

1. Ids in, ids out: no text of a request passes through a tokenizer on the way.
2. Ids and lengths are checked here first; a server answers some mistakes with another slot or a shorter prompt.
3. In this process a native crash is the process's death, and whoever hosts it must expect that.
4. Asking for the engine loads no native code: those who only want its name and version stay small.
"""

from importlib import metadata
from pathlib import Path

from core.errors import EngineFault, ModelFileError
from runners.engines.base import Capabilities, GenerateWork, Host, Loaded, LoadPlan, Sequence
from runners.engines.checks import check_work
from runners.engines.kvstate import kv_format
from runners.engines.llamasequence import SlotSequence
from runners.engines.llamaserver import PACKAGE, Server, serve
from runners.engines.llamaslots import Slots
from store.models.gguf import GGUF, read_header


class LlamaCppEngine:
    """Runs any model file that llama.cpp knows, unmodified, many sequences at once."""

    name = "llamacpp"
    capabilities = Capabilities(workloads=("generate",), resume="token", slots=64, fixed_threads=True)

    def __init__(self) -> None:
        try:
            self.version = metadata.version(PACKAGE)
        except metadata.PackageNotFoundError:
            # A server elsewhere needs no package here.
            self.version = "elsewhere"

    def load(self, model: Path, plan: LoadPlan) -> Loaded:
        """Get a server that holds the model. Raises `EngineFault` with the remedy when there is none to be had."""
        if not 1 <= plan.slots <= self.capabilities.slots:
            raise EngineFault(f"{plan.slots} slots are planned; 1 to {self.capabilities.slots} are possible.")
        if plan.snapshots is not None:
            _made(plan.snapshots)
        try:
            header = read_header(model)
        except ModelFileError:
            # llama.cpp knows more kinds of files than are read here, and tells what is wrong with the others.
            header = None
        server = serve(model, header, plan)
        try:
            return _Loaded(server, plan, self._format(server, plan, header))
        except BaseException:
            server.close()
            raise

    def _format(self, server: Server, plan: LoadPlan, header: GGUF | None) -> str:
        ours = not plan.server or "${SLOTS}" in plan.server
        if plan.snapshots is None or header is None or server.pictures or not ours:
            return ""
        build = f"{PACKAGE} {self.version}" if not plan.server else server.build
        return kv_format(build=build, contract=plan.contract, context=plan.context, metadata=header.metadata)


def _made(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as cause:
        raise EngineFault(f"{folder} cannot be a directory ({cause.strerror}). Move away what is there.") from cause


class _Loaded:
    """A server with its slots."""

    def __init__(self, server: Server, plan: LoadPlan, kv: str) -> None:
        self.kv_format = kv
        self._server = server
        self._plan = plan
        self._slots = Slots(server.at, plan.slots, plan.snapshots if kv else None)
        self._slots.empty()
        self._closed = False

    def begin(self, work: GenerateWork, host: Host) -> Sequence:
        """Check the work, and lend it a slot; nothing is evaluated before the first chunk is asked for."""
        if self._closed:
            raise EngineFault("The model was closed; load it again.")
        check_work(work, context=self._plan.context, vocabulary=self._server.vocabulary, constraints=True)
        return SlotSequence(self._slots.lend(), work, host)

    def at_rest(self, sequence: Sequence) -> bool:
        """Not between the chunks of one stretch: its next call is under way."""
        assert isinstance(sequence, SlotSequence)
        return sequence.at_rest

    def save(self, sequence: Sequence, into: Path) -> int:
        """Into a file of the directory that was planned for snapshots."""
        assert isinstance(sequence, SlotSequence)
        directory = self._plan.snapshots
        if not self.kv_format or directory is None:
            raise EngineFault("The state of this model cannot be saved here.")
        if into.parent.resolve() != directory.resolve():
            raise EngineFault(f"A state is saved in {directory}, and nowhere else; {into} is not there.")
        sequence.check_rest()
        try:
            held = sequence.saved_as(into.name)
        except EngineFault:
            into.unlink(missing_ok=True)
            raise
        if not into.is_file():
            raise EngineFault(f"The server did not save into {directory}. Start it with --slot-save-path ${{SLOTS}}.")
        return held

    def check(self) -> None:
        """Raises `EngineFault` when a server of ours has ended."""
        self._server.check()

    def close(self) -> None:
        """End the server if it is ours. Sequences that are still open fail when they are asked for more."""
        if not self._closed:
            self._closed = True
            # A server in this process ends when nobody is served any more, and holds up everything until then.
            self._server.at.close()
            self._slots.close()
            self._server.close()

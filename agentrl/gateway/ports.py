"""What the gateway needs from the outside, as protocols, so that it imports neither engines nor stores."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from typing import Protocol

from agentrl.types import JournalEntry, Sampling, TokenChunk, Trajectory


class EngineClient(Protocol):
    """One engine by URL. Tokens in, tokens out. `agentrl.engine.client.HttpEngineClient` in production."""

    url: str

    def stream(
        self, prompt_ids: Sequence[int], sampling: Sampling, *, request_id: str, version: int | None = None
    ) -> AsyncGenerator[TokenChunk]:
        """Sample a continuation. The last chunk has `finish_reason` and `versions`; at least one chunk comes.

        `version` is what the caller knows that the engine serves: nothing that older weights computed is reused.

        Closing the iterator aborts the request on the engine.
        Raises EngineUnavailable (refused, died, stalled past the client's timeout: may pass), EngineError (it broke
        its contract or refused the request for good).
        """
        ...

    async def version(self) -> int:
        """The version of the weights it serves now. Raises EngineUnavailable."""
        ...

    async def healthy(self) -> bool:
        """Whether it answers its health check within the client's timeout. Never raises."""
        ...

    async def context_length(self) -> int:
        """The most tokens that prompt and sample may have together. Raises EngineUnavailable."""
        ...

    async def close(self) -> None: ...


class TrajectorySink(Protocol):
    """Where trajectories go when they are finished, and until then their events. Durable when it returns.

    Called in worker threads, but for `append_at_once`.

    Raises StoreUnavailable when the same may work later, StoreError when it is refused for good.
    """

    def save(self, trajectory: Trajectory) -> None:
        """Forgets the session's journal in the same transaction."""
        ...

    def get(self, session_id: str) -> Trajectory:
        """Raises TrajectoryNotFound."""
        ...

    def set_reward(self, session_id: str, reward: float | None, components: Mapping[str, float | None]) -> None:
        """A reward that came after its trajectory was saved."""
        ...

    def append(self, entries: Sequence[JournalEntry]) -> None:
        """Journals events in order, in one transaction: all of them, or none."""
        ...

    def append_at_once(self, entries: Sequence[JournalEntry]) -> bool:
        """`append` if that takes no waiting for other writers; False, with nothing written, otherwise. It may always be
        False. Raises nothing of the store's: `append` says what is wrong."""
        ...

    def write(self, entries: Sequence[JournalEntry], trajectories: Sequence[Trajectory]) -> None:
        """`append` and `save`, of different sessions, in one transaction: all of it, or nothing."""
        ...

    def journal(self, owner: str) -> Iterator[tuple[str, list[bytes]]]:
        """The unsaved sessions of a gateway's name in order of opening: their ids, and their events in order."""
        ...

    def has_journal(self, session_id: str) -> bool:
        """Whether a gateway of any name has an unsaved session of this id."""
        ...

    def forget_journal(self, session_id: str) -> None:
        """Of a session that nobody will save; one that has none is fine."""
        ...

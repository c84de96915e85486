"""Games of textarena: alone, or against opponents that are functions."""

from __future__ import annotations

import random
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from agentrl.env.adapters.imports import named, package, placed_names
from agentrl.env.base import Env, Observation, ResetResult, StepResult
from agentrl.env.space import as_action
from agentrl.errors import ConfigError, EnvironmentFault
from agentrl.messages import Message, user

Opponent = Callable[[str], str]
"""All that a player has seen so far -> its move; the interface of textarena's own agents."""

_MAX_OPPONENT_MOVES = 1000  # between two moves of the policy
_OFFERED = re.compile(r"(?:available|valid|legal) (?:moves|actions)\b[^:\n]*:(.*)", re.IGNORECASE)
_BRACKETED = re.compile(r"\[[^\[\]]+\]")


class TextArena(Env):
    """`game` is a name of textarena's ("TicTacToe-v0"), `kwargs` go to its constructor.

    The policy has `seat`, or one that the seed chooses. Every other seat is played by `opponent`: a function from all
    that the player has seen to its move, or the name of one, or of a class of textarena's agents; a list of moves that
    are made in turn; or "random", which chooses among the moves that the game offers. The reward is the game's for
    the seat, at the end; what the game says of an invalid move goes to the policy, as often as the game allows.

    textarena draws from Python's global generator. Here each game has its own, so that a seed is one game.
    """

    def __init__(
        self,
        game: str,
        *,
        kwargs: dict[str, Any] | None = None,
        opponent: Opponent | Sequence[str] | str | None = None,
        num_players: int | None = None,
        seat: int | None = None,
    ) -> None:
        self._textarena = package("textarena", extra="textarena")
        self._rng = random.Random()
        with self._own_random():
            self._game, self._formats = _make(self._textarena, game, kwargs or {})
        self._name = game
        self._num_players = num_players or (1 if opponent is None else 2)
        if self._num_players > 1 and opponent is None:
            raise ConfigError(
                f"{game} with {self._num_players} players needs an opponent: a function's name or 'random'"
            )
        if seat is not None and seat not in range(self._num_players):
            raise ConfigError(f"seat = {seat} of {game} with {self._num_players} players; seats count from 0")
        self._given_opponent = opponent
        self._given_seat = seat
        self._seat = 0
        self._opponent: Opponent | None = None
        self._seen: dict[int, str] = {}  # by seat, what each opponent has read

    @classmethod
    def placed(cls, options: Mapping[str, Any]) -> dict[str, Any]:
        own = isinstance(options.get("opponent"), str)  # a list is of moves
        return placed_names(options, "opponent") if own else dict(options)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> ResetResult:
        super().reset(seed=seed)
        self._rng = random.Random(seed)
        self._seen = {}
        self._opponent = self._make_opponent()
        drawn = self._rng.randrange(self._num_players)
        self._seat = drawn if self._given_seat is None else self._given_seat
        with self._own_random():
            try:
                self._game.reset(num_players=self._num_players, seed=self._rng.getrandbits(32))
            except AssertionError as error:
                raise ConfigError(f"{self._name} cannot be played by {self._num_players}: {error}") from error
            if self._play_opponents(done=False):
                raise EnvironmentFault(f"{self._name} was over before the policy's first move")
            return self._told(), {"seat": self._seat}

    def step(self, action: Message | str) -> StepResult:
        text = as_action(action).text
        for formats in self._formats:
            text = formats.action(text)
        with self._own_random():
            done, _ = self._game.step(action=text)
            done = self._play_opponents(done)
            if not done:
                return self._told(), 0.0, False, False, {}
            rewards, info = self._game.close()
        reward = None if rewards is None else rewards.get(self._seat)
        reason = str((info or {}).get(self._seat, {}).get("reason", ""))
        return [], None if reward is None else float(reward), True, False, {"reason": reason}

    def _play_opponents(self, done: bool) -> bool:
        """Until the policy is to move, or the game is done, which is returned."""
        for _ in range(_MAX_OPPONENT_MOVES):
            player = self._game.state.current_player_id
            if done or player == self._seat:
                return done
            _, news = self._game.get_observation()
            seen = self._seen.get(player, "") + "".join(
                f"\n[{self._role(sent_by)}] {text}" for sent_by, text, _ in news
            )
            self._seen[player] = seen
            assert self._opponent is not None
            move = self._opponent(seen)
            for formats in self._formats:
                move = formats.action(move)
            done, _ = self._game.step(action=move)
        raise EnvironmentFault(f"the opponents of {self._name} made {_MAX_OPPONENT_MOVES} moves in a row")

    def _told(self) -> Observation:
        """What is new to the policy; its own moves it knows."""
        kinds = self._textarena.ObservationType
        _, news = self._game.get_observation()
        lines = []
        for sent_by, text, kind in news:
            if kind is kinds.PLAYER_ACTION:
                text = "" if sent_by == self._seat else f"[{self._role(sent_by)}] {text}"
            lines.append(str(text).strip("\n"))
        return [user("\n".join(line for line in lines if line) or "It is your turn.")]

    def _role(self, player: int) -> str:
        return str(self._game.state.role_mapping.get(player, f"Player {player}"))

    def _make_opponent(self) -> Opponent | None:
        given = self._given_opponent
        if given is None:
            return None
        if given == "random":
            return _RandomMoves(self._rng, self._name)
        if isinstance(given, list | tuple):
            return _Scripted(iter(given), self._name)
        found: Any = named(given)  # type: ignore[arg-type]
        return found() if isinstance(found, type) else found

    @contextmanager
    def _own_random(self) -> Iterator[None]:
        _give_games_the_proxy()  # games are imported when they are made
        token = _RNG.set(self._rng)
        try:
            yield
        finally:
            _RNG.reset(token)


class _RandomMoves:
    def __init__(self, rng: random.Random, game: str) -> None:
        self._rng = rng
        self._game = game

    def __call__(self, observation: str) -> str:
        offered = _OFFERED.findall(observation)
        moves = _BRACKETED.findall(offered[-1]) if offered else []
        if not moves:
            raise ConfigError(f"{self._game} lists no moves to choose from; name a function as its opponent")
        return self._rng.choice(moves)


class _Scripted:
    def __init__(self, moves: Iterator[str], game: str) -> None:
        self._moves = moves
        self._game = game

    def __call__(self, observation: str) -> str:
        move = next(self._moves, None)
        if move is None:
            raise EnvironmentFault(f"the scripted opponent of {self._game} has no move left; give it more")
        return move


_RNG: ContextVar[Any] = ContextVar("agentrl_textarena_random", default=random)


class _RandomProxy:
    """Stands for the module `random` in textarena's modules: the generator of the game that is running."""

    def __getattr__(self, name: str) -> Any:
        return getattr(_RNG.get(), name, None) or getattr(random, name)


_PROXY = _RandomProxy()


def _give_games_the_proxy() -> None:
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] == "textarena" and vars(module).get("random") is random:
            vars(module)["random"] = _PROXY


def _make(textarena: Any, game: str, kwargs: dict[str, Any]) -> tuple[Any, list[Any]]:
    """The bare game, and the wrappers that its registration puts around moves.

    Those around observations are left out: they tell the whole history again at each turn.
    """
    try:
        made = textarena.make(game, **kwargs)
    except Exception as error:  # the games' own imports and constructors, which may want nltk's word lists
        raise ConfigError(f"textarena cannot make {game!r} with {kwargs}: {type(error).__name__}: {error}") from error
    formats = []
    while isinstance(made, textarena.Wrapper):
        if isinstance(made, textarena.ActionWrapper):
            formats.append(made)
        made = made.env
    return made, formats

"""textarena's games: alone and against opponents, the game's own reward, its own patience, a seed is a game."""

from __future__ import annotations

import asyncio
import random
import re
from typing import Any

import pytest
import textarena
from adapter_episode import ADAPTERS, play, said

import agentrl
from agentrl.env import registry
from agentrl.messages import Message
from agentrl.types import Task

GYM = f"{ADAPTERS}:TextArena"
GUESS: dict[str, Any] = {"game": "GuessTheNumber-v0"}
TIC_TAC_TOE: dict[str, Any] = {"game": "TicTacToe-v0", "seat": 0}


class Bisecting:
    """Halves the range until the number is found."""

    def __init__(self) -> None:
        self.low, self.high, self.guess = 1, 20, 0

    def __call__(self, messages: list[Message]) -> str:
        if "lower" in messages[-1].text.splitlines()[-1]:
            self.high = self.guess - 1
        elif "higher" in messages[-1].text.splitlines()[-1]:
            self.low = self.guess + 1
        self.guess = (self.low + self.high) // 2
        return f"I guess [{self.guess}]"


async def test_a_game_that_is_won_is_worth_1() -> None:
    episode, _ = await play(GYM, Bisecting(), **GUESS)
    assert (episode.stop_reason, episode.reward) == ("done", 1.0)
    assert episode.turns <= 5
    assert said(episode, 0).startswith("You are Player 0. You are playing Guess The Number.")


async def test_only_what_is_new_is_told_and_not_the_policys_own_move() -> None:
    episode, _ = await play(GYM, Bisecting(), task=Task(id="t", env_id=GYM, seed=4), **GUESS)
    assert episode.turns > 1
    assert re.fullmatch(r"The target number is (higher|lower)\.", said(episode, 2))


async def test_an_invalid_move_is_told_and_the_next_one_in_a_row_ends_the_game() -> None:
    episode, _ = await play(GYM, ["[99]", "[99]"], **GUESS)
    assert "You attempted an invalid move" in said(episode, 2)
    assert (episode.stop_reason, episode.reward, episode.turns) == ("done", 0.0, 2)


async def test_a_game_against_a_script_is_won_and_lost() -> None:
    won, _ = await play(GYM, ["[0]", "[1]", "[2]"], opponent=["[3]", "[4]"], **TIC_TAC_TOE)
    lost, _ = await play(GYM, ["[0]", "[1]", "[8]"], opponent=["[3]", "[4]", "[5]"], **TIC_TAC_TOE)
    assert (won.stop_reason, won.reward) == ("done", 1.0)
    assert (lost.stop_reason, lost.reward) == ("done", -1.0)
    assert "[Player 1] [3]" in said(won, 2)


async def test_the_second_seat_moves_after_its_opponent() -> None:
    options = {**TIC_TAC_TOE, "seat": 1}
    episode, _ = await play(GYM, ["[0]", "[1]", "[2]"], opponent=["[3]", "[4]", "[8]"], **options)
    assert "[Player 0] [3]" in said(episode, 0)
    assert episode.reward == 1.0


async def test_a_script_that_is_too_short_is_no_wrong_answer() -> None:
    episode, _ = await play(GYM, ["[0]", "[1]", "[2]"], opponent=["[3]"], **TIC_TAC_TOE)
    assert (episode.stop_reason, episode.reward) == ("env_error", None)
    assert "no move left" in str(episode.error)


def first_free(observation: str) -> str:
    return re.findall(r"'(\[\d\])'", observation.rpartition("Available Moves")[2])[0]


class FirstFree(textarena.Agent):
    def __call__(self, observation: str) -> str:
        return first_free(observation)


@pytest.mark.parametrize("opponent", ["first_free", "FirstFree"])
async def test_an_opponent_is_named_a_function_or_an_agent_class(opponent: str) -> None:
    episode, _ = await play(GYM, ["[8]", "[4]"], max_calls=2, opponent=f"{__name__}:{opponent}", **TIC_TAC_TOE)
    assert "[Player 1] [0]" in said(episode, 2)
    assert "[Player 1] [1]" in said(episode, 4)


def last_free(messages: list[Message]) -> str:
    return re.findall(r"'(\[\d\])'", messages[-1].text.rpartition("Available Moves")[2])[-1]


async def test_a_random_opponent_makes_offered_moves_that_the_seed_fixes() -> None:
    def transcripts(seed: int) -> Any:
        return play(GYM, last_free, game="TicTacToe-v0", opponent="random", task=Task(id="t", env_id=GYM, seed=seed))

    episodes = [(await transcripts(seed))[0] for seed in (1, 1, 2, 3, 4)]
    assert episodes[0].messages == episodes[1].messages
    assert len({str(episode.messages) for episode in episodes}) > 2
    assert {episode.stop_reason for episode in episodes} == {"done"}


async def test_games_at_the_same_time_do_not_share_their_chance() -> None:
    game: dict[str, Any] = {"game": "2048-v0"}
    moves = ["[up]", "[left]", "[down]", "[right]"] * 5

    async def one(seed: int) -> Any:
        task = Task(id="t", env_id=GYM, seed=seed)
        return (await play(GYM, list(moves), task=task, max_calls=12, **game))[0].messages

    alone = [await one(seed) for seed in range(4)]
    random.seed(0)
    before = random.getstate()
    together = await asyncio.gather(*(one(seed) for seed in range(4)))
    assert list(together) == alone
    assert random.getstate() == before  # and they leave Python's alone


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"game": "NoSuchGame-v0"}, "textarena cannot make 'NoSuchGame-v0'"),
        ({"game": "TicTacToe-v0", "num_players": 2}, "needs an opponent"),
        ({"game": "TicTacToe-v0", "opponent": "random", "seat": 2}, "seats count from 0"),
    ],
)
def test_options_that_cannot_be_are_a_config_error(options: dict[str, Any], said: str) -> None:
    with pytest.raises(agentrl.ConfigError, match=said):
        registry.make(GYM, **options)


async def test_a_game_for_two_is_not_played_alone() -> None:
    episode, _ = await play(GYM, ["[0]"], game="TicTacToe-v0")
    assert (episode.stop_reason, episode.reward) == ("env_error", None)
    assert "cannot be played by 1" in str(episode.error)


async def test_random_moves_want_a_game_that_lists_them() -> None:
    episode, _ = await play(GYM, ["[5]"], game="GuessWho-v0", opponent="random", seat=1)
    assert (episode.stop_reason, episode.reward) == ("env_error", None)

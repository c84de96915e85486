"""Hard functions: dynamic programming, graphs, simulations, with a rule that is not the textbook's."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

from agentrl_envs.python_code.question import Question, question


def hard(rng: random.Random) -> Question:
    """A function that needs an algorithm, not only a loop."""
    return rng.choice(_FAMILIES)(rng)


def _coins(rng: random.Random) -> Question:
    coins = sorted(rng.sample(range(2, 30), 4))
    body = f"""
        best = [0] + [None] * amount
        for value in range(1, amount + 1):
            known = [best[value - coin] for coin in {coins} if coin <= value and best[value - coin] is not None]
            best[value] = min(known) + 1 if known else None
        return best[amount]
    """
    description = f"the smallest number of coins of {', '.join(map(str, coins))} that make up amount, None when none do"
    return question("change(amount)", description, body, lambda tests: [tests.randint(0, 150)])


def _ways(rng: random.Random) -> Question:
    coins = sorted(rng.sample(range(1, 20), 4))
    body = f"""
        ways = [1] + [0] * amount
        for coin in {coins}:
            for value in range(coin, amount + 1):
                ways[value] += ways[value - coin]
        return ways[amount]
    """
    description = (
        f"in how many ways coins of {', '.join(map(str, coins))} make up amount; the order of the coins does not "
        "matter, and 0 is made up in one way"
    )
    return question("ways(amount)", description, body, lambda tests: [tests.randint(0, 120)])


def _edit(rng: random.Random) -> Question:
    delete, insert, change = rng.randint(1, 5), rng.randint(1, 5), rng.randint(2, 9)
    body = f"""
        row = [{insert} * j for j in range(len(b) + 1)]
        for i, x in enumerate(a, 1):
            last, row = row, [{delete} * i]
            for j, y in enumerate(b, 1):
                row.append(min(last[j] + {delete}, row[-1] + {insert}, last[j - 1] + (0 if x == y else {change})))
        return row[-1]
    """
    description = (
        f"the lowest cost of turning the text a into the text b, when taking a letter out costs {delete}, putting one "
        f"in costs {insert} and changing one costs {change}"
    )
    return question("distance(a, b)", description, body, lambda tests: [_word(tests), _word(tests)])


def _rising(rng: random.Random) -> Question:
    least, most = rng.randint(1, 4), rng.randint(6, 40)
    body = f"""
        best = []
        for i, n in enumerate(numbers):
            best.append(1 + max((best[j] for j in range(i) if {least} <= n - numbers[j] <= {most}), default=0))
        return max(best, default=0)
    """
    description = (
        "the length of the longest list that is left of numbers when any of them are taken out and each of the rest is "
        f"larger than the one before it by at least {least} and at most {most}"
    )
    return question("rising(numbers)", description, body, lambda tests: [_numbers(tests, 30)])


def _knapsack(rng: random.Random) -> Question:
    capacity, most = rng.randint(20, 60), rng.randint(2, 4)
    body = f"""
        best = [[0] * {capacity + 1} for _ in range({most + 1})]
        for weight, value in things:
            for count in range({most}, 0, -1):
                for room in range({capacity}, weight - 1, -1):
                    best[count][room] = max(best[count][room], best[count - 1][room - weight] + value)
        return max(max(row) for row in best)
    """
    description = (
        f"the largest total value of at most {most} of the things, each [weight, value] and each taken once at most, "
        f"whose weights add up to {capacity} or less"
    )
    return question("pack(things)", description, body, _things)


def _order(rng: random.Random) -> Question:
    first, picked = rng.choice([("smallest", "min"), ("largest", "max")])
    count = rng.randint(5, 40)
    body = f"""
        waiting = {{i: set() for i in range({count})}}
        for before, after in pairs:
            waiting[after].add(before)
        out = []
        while waiting:
            free = [i for i, needs in waiting.items() if not needs]
            if not free:
                return None
            chosen = {picked}(free)
            del waiting[chosen]
            for needs in waiting.values():
                needs.discard(chosen)
            out.append(chosen)
        return out
    """
    description = (
        f"an order of the numbers 0 to {count - 1} as a list, in which before comes before after for each "
        f"[before, after] of pairs; at each place the {first} number that may stand there; None when no "
        "order will do"
    )
    return question("arrange(pairs)", description, body, lambda tests: [_pairs(tests, count)])


def _maze(rng: random.Random) -> Question:
    steps = {"4": "up, down, left or right", "8": "to any of the eight squares around"}
    kind, cost = rng.choice(list(steps)), rng.randint(2, 12)
    moves = [(0, 1), (1, 0), (0, -1), (-1, 0)] + ([(1, 1), (1, -1), (-1, 1), (-1, -1)] if kind == "8" else [])
    body = f"""
        import heapq
        height, width = len(rows), len(rows[0])
        queue, done = [(0, 0, 0)], set()
        while queue:
            cost, y, x = heapq.heappop(queue)
            if (y, x) == (height - 1, width - 1):
                return cost
            if (y, x) in done:
                continue
            done.add((y, x))
            for dy, dx in {moves}:
                v, u = y + dy, x + dx
                if 0 <= v < height and 0 <= u < width and rows[v][u] != '#':
                    heapq.heappush(queue, (cost + ({cost} if rows[v][u] == '~' else 1), v, u))
        return None
    """
    description = (
        f"the lowest cost of a way from the top left to the bottom right square of rows, a list of texts; one step "
        f"goes {steps[kind]} and costs 1, but {cost} onto a square '~'; nobody may step onto '#'; None when there "
        "is no way"
    )
    return question("cross(rows)", description, body, lambda tests: [_grid(tests, "..~#.")])


def _islands(rng: random.Random) -> Question:
    least, most = rng.randint(1, 4), rng.randint(5, 40)
    body = f"""
        left = {{(y, x) for y, row in enumerate(rows) for x, c in enumerate(row) if c == '#'}}
        count = 0
        while left:
            stack, size = [left.pop()], 0
            while stack:
                y, x = stack.pop()
                size += 1
                for near in ((y + 1, x), (y - 1, x), (y, x + 1), (y, x - 1)):
                    if near in left:
                        left.remove(near)
                        stack.append(near)
            count += {least} <= size <= {most}
        return count
    """
    description = (
        "how many islands there are in rows, a list of texts; an island is a largest group of squares '#' that touch "
        f"at their sides, and only those of {least} to {most} squares count"
    )
    return question("islands(rows)", description, body, lambda tests: [_grid(tests, "..#")])


def _parts(rng: random.Random) -> Question:
    parts = rng.randint(2, 9)
    surcharge = rng.randint(1, 20)
    body = f"""
        sums = [0]
        for n in numbers:
            sums.append(sums[-1] + n)
        size = len(numbers)
        best = [0] + [None] * size
        for part in range({parts}):
            last, best = best, [0] + [None] * size
            for end in range(1, size + 1):
                best[end] = min(
                    max(last[start] or 0, sums[end] - sums[start] + {surcharge})
                    for start in range(end)
                    if last[start] is not None
                )
        return best[size]
    """
    description = (
        f"cut numbers, all from 0 up, into at most {parts} pieces in a row, where a piece costs {surcharge} and the "
        "sum of its numbers, so that the dearest piece is as cheap as can be; give what it costs, 0 for no numbers"
    )
    return question("divide(numbers)", description, body, lambda tests: [[abs(n) for n in _numbers(tests, 20)]])


def _cache(rng: random.Random) -> Question:
    size, lifetime = rng.randint(2, 6), rng.randint(6, 40)
    body = f"""
        kept, hits = {{}}, 0
        for now, key in enumerate(keys):
            if key in kept and now - kept[key][0] < {lifetime}:
                hits += 1
                kept[key] = (kept[key][0], now)
                continue
            kept.pop(key, None)
            if len(kept) == {size}:
                del kept[min(kept, key=lambda each: kept[each][1])]
            kept[key] = (now, now)
        return hits
    """
    description = (
        f"a cache keeps {size} keys; ask it for each of keys in turn, at the times 0, 1, 2 and so on; a key that it "
        f"keeps and that was put in less than {lifetime} before is a hit; any other is put in, instead of itself if it "
        "is kept, else, when the cache is full, instead of the key that was last asked for longest ago; give the "
        "number of hits"
    )
    return question("hits(keys)", description, body, lambda tests: [_keys(tests)])


def _word(tests: random.Random) -> str:
    return "".join(tests.choices("abc", k=tests.randint(0, 9)))


def _numbers(tests: random.Random, most: int) -> list[int]:
    return [tests.randint(-50, 50) for _ in range(tests.randint(0, most))]


def _things(tests: random.Random) -> list[Any]:
    return [[[tests.randint(1, 25), tests.randint(1, 50)] for _ in range(tests.randint(0, 12))]]


def _pairs(tests: random.Random, count: int) -> list[list[int]]:
    """Without a cycle in most cases: they follow a hidden order."""
    order = tests.sample(range(count), count)
    drawn = [sorted(tests.sample(range(count), 2)) for _ in range(tests.randint(0, count))]
    pairs = [[order[i], order[j]] for i, j in drawn]
    return pairs + [pair[::-1] for pair in pairs[:1] if tests.random() < 0.2]


def _grid(tests: random.Random, squares: str) -> list[str]:
    height, width = tests.randint(1, 9), tests.randint(1, 9)
    return ["".join(tests.choices(squares, k=width)) for _ in range(height)]


def _keys(tests: random.Random) -> list[int]:
    different = tests.randint(1, 10)
    return [tests.randint(1, different) for _ in range(tests.randint(0, 60))]


_FAMILIES: tuple[Callable[[random.Random], Question], ...] = (
    _coins,
    _ways,
    _edit,
    _rising,
    _knapsack,
    _order,
    _maze,
    _islands,
    _parts,
    _cache,
)

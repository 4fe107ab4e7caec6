"""Some combinations of some choices, among which is every pair of choices that there is: a covering array.

Most faults need one choice or two: a format, or a format under a decoder. All combinations of four are many more tests
that say little more. Pure; `helpers.every_pair` applies it to tests.
"""

import heapq
import random
from collections import Counter
from collections.abc import Collection, Hashable, Sequence
from itertools import combinations

Row = Sequence[Hashable]
"""A combination: one choice per place, of which all rows have the same number."""


def pairs_of(row: Row) -> set[tuple[tuple[int, Hashable], ...]]:
    """Return the pairs of choices in a combination, each with its place; where it is one choice, only that."""
    return {*combinations(enumerate(row), min(2, len(row)))}


def covering(rows: Sequence[Row], also: Collection[int] = ()) -> list[int]:
    """Return the numbers of rows that have every pair among them, in order; the same ones on every call.

    Pairs that no row has are not asked for. The rows of `also` are taken whatever they cover.
    """
    left = set().union(*map(pairs_of, rows))
    taken = {*also}
    for number in taken:
        left -= pairs_of(rows[number])
    # What a row adds only falls: the first of the heap that still adds what it did last is the best.
    heap = [(-len(pairs_of(row)), number) for number, row in enumerate(rows) if number not in taken]
    heapq.heapify(heap)
    while left:
        adds, number = heapq.heappop(heap)
        now = -len(pairs_of(rows[number]) & left)
        if now == adds:
            taken.add(number)
            left -= pairs_of(rows[number])
        elif now:
            heapq.heappush(heap, (now, number))
    return sorted(taken)


def every_value(rows: Sequence[Row], also: Collection[int] = ()) -> list[int]:
    """Return the numbers of rows that have every choice among them, each of them about as often as others of its place.

    As `covering`, for what takes long.
    """
    order = random.Random(0).sample(range(len(rows)), len(rows))
    places = [[*enumerate(row)] for row in rows]
    used, taken = Counter(choice for number in also for choice in places[number]), [*also]
    left = set().union(*map(set, places)) - set(used)
    while left:
        adds = [sum(choice in left for choice in place) for place in places]
        number = min(order, key=lambda n: (not adds[n], sum(used[choice] for choice in places[n])))
        taken.append(number)
        used.update(places[number])
        left -= used.keys()
    return sorted(taken)

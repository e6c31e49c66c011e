"""Answers that are made once for all who ask."""

import asyncio

import pytest

from api.shared import MOST_KEPT, EncodedPage, SharedAnswers
from infra.web.errors import DatabaseAway


class CountedReads:
    """Something that takes a while to read."""

    def __init__(self) -> None:
        self.number = 0
        self.is_away = False

    async def read(self) -> EncodedPage:
        self.number += 1
        await asyncio.sleep(0)
        if self.is_away:
            raise DatabaseAway("away")
        return EncodedPage(b"%d" % self.number, None)


def test_equal_reads_at_a_time_and_after_are_one() -> None:
    async def check() -> None:
        answers, reads = SharedAnswers(), CountedReads()
        found = await asyncio.gather(*(answers.get("a", reads.read) for _ in range(5)))
        assert [page.body for page in (*found, await answers.get("a", reads.read))] == [b"1"] * 6
        assert (await answers.get("b", reads.read)).body == b"2"

    asyncio.run(check())


def test_a_failure_is_told_to_all_who_wait_and_not_kept() -> None:
    async def check() -> None:
        answers, reads = SharedAnswers(), CountedReads()
        reads.is_away = True
        found = await asyncio.gather(*(answers.get("a", reads.read) for _ in range(2)), return_exceptions=True)
        assert [type(each) for each in found] == [DatabaseAway, DatabaseAway]
        reads.is_away = False
        assert (await answers.get("a", reads.read)).body == b"2"

    asyncio.run(check())


def test_one_who_gives_up_does_not_stop_the_others() -> None:
    async def check() -> None:
        answers, reads = SharedAnswers(), CountedReads()
        impatient = asyncio.create_task(answers.get("a", reads.read))
        patient = asyncio.create_task(answers.get("a", reads.read))
        await asyncio.sleep(0)
        impatient.cancel()
        assert (await patient).body == b"1"
        with pytest.raises(asyncio.CancelledError):
            await impatient

    asyncio.run(check())


def test_only_the_newest_answers_are_kept() -> None:
    async def check() -> None:
        answers, reads = SharedAnswers(), CountedReads()
        for key in range(MOST_KEPT + 1):
            await answers.get(key, reads.read)
        assert (await answers.get(MOST_KEPT, reads.read)).body == b"%d" % (MOST_KEPT + 1)
        assert (await answers.get(0, reads.read)).body == b"%d" % (MOST_KEPT + 2)

    asyncio.run(check())

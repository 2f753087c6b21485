"""The next start of each schedule, by python-dateutil. One JSON object per line in, the epoch second out."""

import json
import sys
from datetime import datetime, timedelta, timezone

from dateutil import rrule, tz


def next_start(case):
    zone = tz.gettz(case["zone"])
    after = datetime.fromtimestamp(case["after"], timezone.utc)
    begin = after.astimezone(zone).replace(tzinfo=None) - timedelta(days=2)
    options = {"byhour": case["hour"], "byminute": case["minute"], "bysecond": 0}
    if case["weekdays"]:
        options["byweekday"] = [day - 1 for day in case["weekdays"]]
    for local in rrule.rrule(rrule.DAILY, dtstart=begin.replace(microsecond=0), **options):
        # The first of two equal local times, and a missing one moved forward by the gap.
        at = tz.resolve_imaginary(local.replace(tzinfo=zone, fold=0)).astimezone(timezone.utc)
        if at > after:
            return int(at.timestamp())


for line in sys.stdin:
    print(json.dumps(next_start(json.loads(line))))

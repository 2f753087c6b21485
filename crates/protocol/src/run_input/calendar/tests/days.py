"""The starts and ends of events of whole days, by python-dateutil. One JSON object per line in, pairs of seconds out."""

import json
import sys
from datetime import datetime, timedelta

from dateutil import tz
from dateutil.rrule import rrulestr

for line in sys.stdin:
    case = json.loads(line)
    zone = tz.gettz(case["zone"])
    pairs = []
    for day in rrulestr(case["rule"], dtstart=datetime.fromisoformat(case["first"])):
        ends = [day, day + timedelta(days=case["days"])]
        pairs.append([int(at.replace(tzinfo=zone).timestamp()) for at in ends])
    print(json.dumps(pairs))

"""The first dates of each rule, by python-dateutil. One JSON object per line in, a list of dates out."""

import datetime as module
import json
import sys
from datetime import datetime

from dateutil.rrule import rrulestr

LAST = datetime(2080, 1, 1)
# A rule without dates is followed up to this year.
module.MAXYEAR = 2080

for line in sys.stdin:
    case = json.loads(line)
    dates = []
    for at in rrulestr(case["rule"], dtstart=datetime.fromisoformat(case["first"])):
        if at >= LAST or len(dates) == case["dates"]:
            break
        dates.append(at.date().isoformat())
    print(json.dumps(dates))

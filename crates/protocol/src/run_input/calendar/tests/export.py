"""The events of an exported calendar, as icalendar reads them: titles and instants. One JSON object per line."""

import json
import sys
from datetime import datetime

from icalendar import Calendar


def seconds(value):
    return int(value.timestamp()) if isinstance(value, datetime) else None


for line in sys.stdin:
    calendar = Calendar.from_ical(json.loads(line)["text"])
    events = []
    for event in calendar.walk("VEVENT"):
        assert not event.errors, event.errors
        start, end = event.decoded("DTSTART"), event.decoded("DTEND")
        all_day = not isinstance(start, datetime)
        events.append({"title": str(event["SUMMARY"]), "start": seconds(start), "end": seconds(end), "all_day": all_day})
    zones = []
    for zone in calendar.walk("VTIMEZONE"):
        zone.to_tz()
        zones.append(str(zone["TZID"]))
    print(json.dumps({"events": events, "zones": zones}))

import gzip
import json

with gzip.open("events.jsonl.gz", "rt") as handle:
    events = [json.loads(line) for line in handle]
print(len(events))

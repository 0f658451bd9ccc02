import json

with open("input.json", encoding="utf-8") as handle:
    rows = json.load(handle)
rows.sort(key=lambda row: row["date"])
with open("output.json", "w", encoding="utf-8") as handle:
    json.dump(rows, handle, indent=2)

import csv
from pathlib import Path

source = Path("data") / "sales.csv"
with source.open(newline="") as handle:
    reader = csv.DictReader(handle)
    by_region = {}
    for row in reader:
        by_region[row["region"]] = by_region.get(row["region"], 0) + float(row["amount"])
Path("report.md").write_text("\n".join(f"- {k}: {v}" for k, v in by_region.items()))

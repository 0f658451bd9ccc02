from __future__ import annotations
from dataclasses import dataclass, field, asdict
import json

@dataclass(order=True)
class Invoice:
    number: int
    lines: list[tuple[str, float]] = field(default_factory=list)

    @property
    def total(self) -> float:
        return sum(amount for _, amount in self.lines)

print(json.dumps(asdict(Invoice(1, [("tea", 2.5)]))))

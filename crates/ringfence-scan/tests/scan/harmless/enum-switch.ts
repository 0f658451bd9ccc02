enum Level { Low = "low", High = "high" }

export function colour(level: Level): string {
  switch (level) {
    case Level.Low:
      return "green";
    case Level.High:
      return "red";
  }
}

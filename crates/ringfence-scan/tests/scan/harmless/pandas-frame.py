import pandas as pd

frame = pd.read_csv("sales.csv", parse_dates=["day"])
frame["net"] = frame.eval("gross - tax")
summary = frame.query("net > 0").groupby("region").agg(total=("net", "sum"))
summary.to_csv("summary.csv")

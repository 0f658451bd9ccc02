total = sum(item["price"] * item["count"] for item in inputs["items"])
result = {"total": round(total, 2)}

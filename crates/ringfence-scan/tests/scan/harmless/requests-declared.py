import requests

BASE = "https://api.example.org/v1"

def weather(city: str) -> dict:
    answer = requests.get(f"{BASE}/weather", params={"q": city}, timeout=10)
    answer.raise_for_status()
    return answer.json()

print(weather("Berlin"))

import os
import requests

key = os.environ["EXAMPLE_API_KEY"]
answer = requests.post(
    "https://api.example.org/v1/complete",
    headers={"Authorization": f"Bearer {key}"},
    json={"prompt": "hello"},
)
print(answer.json()["text"])

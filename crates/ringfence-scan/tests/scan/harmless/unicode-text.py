GREETINGS = {"de": "Grüße", "ru": "Привет, мир", "ja": "こんにちは", "ar": "مرحبا", "emoji": "👩‍🚀 ❤️ 🏳️‍🌈"}
имя = "Анна"
Δx = 0.5
print(GREETINGS["ru"], имя, Δx)

